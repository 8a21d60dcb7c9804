{{/* How the init container that downloads the model connects to the hub. */}}

{{/* Environment of the download. Takes model.download. A mirror or a proxy does not serve Xet, so Xet is disabled for them. */}}
{{- define "slipstream.model.downloadEnv" -}}
- {name: HF_HUB_DOWNLOAD_TIMEOUT, value: {{ .timeoutSeconds | quote }}}
- {name: HF_HUB_ETAG_TIMEOUT, value: {{ .timeoutSeconds | quote }}}
{{- with .endpoint }}
- {name: HF_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with .proxy }}
- {name: HTTPS_PROXY, value: {{ . | quote }}}
- {name: HTTP_PROXY, value: {{ . | quote }}}
{{- end }}
{{- with .noProxy }}
- {name: NO_PROXY, value: {{ . | quote }}}
{{- end }}
{{- if include "slipstream.model.authority" . }}
- {name: SSL_CERT_FILE, value: /etc/slipstream/download/ca.crt}
{{- end }}
{{- if or .endpoint .proxy (include "slipstream.model.authority" .) }}
- {name: HF_HUB_DISABLE_XET, value: "1"}
{{- end }}
{{- with .tokenSecret }}
{{- if .name }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .name }}, key: {{ .key }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Name of the ConfigMap or Secret with the authorities that the download trusts, or nothing. Takes model.download. */}}
{{- define "slipstream.model.authority" -}}
{{- default .authority.secret .authority.configMap -}}
{{- end -}}

{{/* The authorities as a source of the volume `config`. Takes (dict "root" $ "component" NAME). */}}
{{- define "slipstream.model.authoritySource" -}}
{{- with .root.Values.model -}}
{{- if and (eq .mode "download") (has $.component (list "learner" "rollout" "actor")) (include "slipstream.model.authority" .download) -}}
{{- with .download.authority -}}
- {{ ternary "configMap" "secret" (not (empty .configMap)) }}:
    name: {{ default .secret .configMap }}
    items:
      - {key: {{ .key }}, path: download/ca.crt}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The largest number of pods that download the weights into a volume of their own; 0 if the pods share a volume. */}}
{{- define "slipstream.model.downloads" -}}
{{- $pods := int .Values.learner.nodes -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $workers := ternary .replicas .autoscaling.maxReplicas (eq .autoscaling.kind "none") -}}
{{- $pods = add $pods (mul $workers .nodes) -}}
{{- end -}}
{{- with .Values.model -}}
{{- ternary $pods 0 (and (eq .mode "download") (eq .cache.kind "emptyDir")) -}}
{{- end -}}
{{- end -}}
