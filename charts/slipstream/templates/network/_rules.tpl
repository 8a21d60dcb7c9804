{{/* Rules of NetworkPolicies. */}}

{{/* Peers: pods of this release by component, and pods with hostNetwork by the addresses of the nodes. Takes (list $ ROOM ...). */}}
{{- define "slipstream.network.pods" -}}
{{- $root := index . 0 -}}
{{- $nodes := false -}}
{{- range rest . }}
- podSelector:
    matchLabels:
      {{- include "slipstream.selector" (dict "root" $root "component" .) | nindent 6 }}
{{- if has . (include "slipstream.network.onNodes" $root | splitList " ") -}}{{- $nodes = true -}}{{- end -}}
{{- end }}
{{- if $nodes }}
{{- range $root.Values.network.nodeCIDRs }}
- ipBlock: {cidr: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* The components with a pod that uses the network of its node, separated by blanks. Takes the root. */}}
{{- define "slipstream.network.onNodes" -}}
{{- $found := list -}}
{{- range (include "slipstream.rooms" . | fromJson).rooms -}}
{{- if .room.hostNetwork -}}{{- $found = append $found .component -}}{{- end -}}
{{- end -}}
{{- $found | uniq | join " " -}}
{{- end -}}

{{/* A rule for the port of a service, from or to components. Takes (list $ "from"|"to" SERVICE ROOM ...). */}}
{{- define "slipstream.network.edge" -}}
- ports: [{protocol: TCP, port: {{ include (printf "slipstream.ports.%s" (index . 2)) (index . 0) }}}]
  {{ index . 1 }}:
    {{- include "slipstream.network.pods" (prepend (slice . 3) (index . 0)) | trim | nindent 4 }}
{{- end -}}

{{/* A rule for the clients of a service: the components, and the pods of `helm test`. Takes (list $ SERVICE ROOM ...). */}}
{{- define "slipstream.network.served" -}}
{{- $root := index . 0 -}}
{{- $rooms := slice . 2 -}}
{{- if $root.Values.tests.enabled -}}
{{- $rooms = append $rooms "test" -}}
{{- end -}}
{{- include "slipstream.network.edge" (concat (list $root "from" (index . 1)) $rooms) -}}
{{- end -}}

{{/*
A rule for the ephemeral ports on which gloo and NCCL send weights, and for ports of services, from or to a component.
Takes (list $ "from"|"to" ROOM SERVICE ...).
*/}}
{{- define "slipstream.network.weights" -}}
{{- $root := index . 0 -}}
{{- $range := $root.Values.network.ephemeralPorts -}}
{{- if not $range -}}
{{- include "slipstream.network.any" (slice . 0 3) -}}
{{- else -}}
- ports:
    - {protocol: TCP, port: {{ regexFind "^[0-9]+" $range }}, endPort: {{ regexFind "[0-9]+$" $range }}}
    {{- range slice . 3 }}
    - {protocol: TCP, port: {{ include (printf "slipstream.ports.%s" .) $root }}}
    {{- end }}
  {{ index . 1 }}:
    {{- include "slipstream.network.pods" (list $root (index . 2)) | trim | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* Rules between rollouts: weights, and any traffic between the nodes of one engine. Takes (list $ "from"|"to"). */}}
{{- define "slipstream.network.rollouts" -}}
{{- $spans := false -}}
{{- range (include "slipstream.rollout.pools" (index . 0) | fromJson).pools -}}
{{- if gt (int .nodes) 1 -}}{{- $spans = true -}}{{- end -}}
{{- end -}}
{{- include (ternary "slipstream.network.any" "slipstream.network.weights" $spans) (append . "rollout") -}}
{{- end -}}

{{/* A rule for every TCP port, from or to components. Takes (list $ "from"|"to" ROOM ...). */}}
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
- ports:
    {{- range .Values.network.dns.ports }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  to:
    {{- toYaml .Values.network.dns.peers | nindent 4 }}
{{- end -}}

{{/* A rule for the download from the hub. It has addresses, because a NetworkPolicy cannot select host names. */}}
{{- define "slipstream.network.hub" -}}
{{- if .Values.network.egress.huggingface -}}
{{- with .Values.model.download }}
- ports: [{protocol: TCP, port: {{ default (default "https://huggingface.co" .endpoint) .proxy | include "slipstream.ports.ofUrl" }}}]
{{- end }}
  to:
    {{- with .Values.network.egress.peers }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    {{- range .Values.network.egress.cidrs }}
    - ipBlock: {cidr: {{ . | quote }}, except: {{ include "slipstream.network.except" (list $ .) }}}
    {{- end }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* The blocks that stay closed if CIDR has all addresses of a family; nothing for a smaller block. Takes (list $ CIDR). */}}
{{- define "slipstream.network.except" -}}
{{- $cidr := index . 1 -}}
{{- $closed := list -}}
{{- if has $cidr (list "0.0.0.0/0" "::/0") -}}
{{- range (index . 0).Values.network.egress.except -}}
{{- if eq (contains ":" .) (contains ":" $cidr) -}}{{- $closed = append $closed . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $closed -}}
{{- end -}}
