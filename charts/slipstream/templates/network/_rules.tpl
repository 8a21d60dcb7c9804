{{/* Single rules of NetworkPolicies. */}}

{{/* Pods of this release by room. Takes (list $ ROOM ...). */}}
{{- define "slipstream.network.pods" -}}
{{- $root := index . 0 -}}
{{- range rest . }}
- podSelector:
    matchLabels:
      {{- include "slipstream.selector" (dict "root" $root "component" .) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* A port of a service, from or to rooms. Takes (list $ "from"|"to" SERVICE ROOM ...). */}}
{{- define "slipstream.network.edge" -}}
- ports: [{protocol: TCP, port: {{ include (printf "slipstream.ports.%s" (index . 2)) (index . 0) }}}]
  {{ index . 1 }}:
    {{- include "slipstream.network.pods" (prepend (slice . 3) (index . 0)) | trim | nindent 4 }}
{{- end -}}

{{/* Who a service serves: the rooms, and the pods of `helm test`. Takes (list $ SERVICE ROOM ...). */}}
{{- define "slipstream.network.served" -}}
{{- $root := index . 0 -}}
{{- $rooms := slice . 2 -}}
{{- if $root.Values.tests.enabled -}}
{{- $rooms = append $rooms "test" -}}
{{- end -}}
{{- include "slipstream.network.edge" (concat (list $root "from" (index . 1)) $rooms) -}}
{{- end -}}

{{/* Every TCP port, from or to rooms. Takes (list $ "from"|"to" ROOM ...). */}}
{{- define "slipstream.network.any" -}}
- ports: [{protocol: TCP}]
  {{ index . 1 }}:
    {{- include "slipstream.network.pods" (prepend (slice . 2) (index . 0)) | trim | nindent 4 }}
{{- end -}}

{{- define "slipstream.network.metrics" -}}
{{- with .Values.network.prometheus.peers -}}
- ports: [{protocol: TCP, port: {{ include "slipstream.ports.metrics" $ }}}]
  from:
    {{- toYaml . | nindent 4 }}
{{- end -}}
{{- end -}}

{{- define "slipstream.network.dns" -}}
- ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
  to:
    {{- toYaml .Values.network.dns.peers | nindent 4 }}
{{- end -}}

{{/* The hub of models, for the init container: a NetworkPolicy knows pods and addresses, not names. */}}
{{- define "slipstream.network.hub" -}}
{{- if .Values.network.egress.huggingface -}}
- ports: [{protocol: TCP, port: 443}]
  to:
    {{- range .Values.network.egress.cidrs }}
    - ipBlock: {cidr: {{ . | quote }}, except: {{ toJson (ternary $.Values.network.egress.except list (eq . "0.0.0.0/0")) }}}
    {{- end }}
{{- end -}}
{{- end -}}
