{{/* How the init container reaches the hub. */}}

{{/* Its environment. Takes model.download. A mirror or a proxy has no Xet beside it: everything goes over plain HTTP. */}}
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

{{/* The object with the authorities that the download trusts, if any. Takes model.download. */}}
{{- define "slipstream.model.authority" -}}
{{- default .authority.secret .authority.configMap -}}
{{- end -}}

{{/* It, as a source of the volume `config`. Takes (dict "root" $ "component" NAME). */}}
{{- define "slipstream.model.authoritySource" -}}
{{- with .root.Values.model -}}
{{- if and (eq .mode "download") (has $.component (list "learner" "rollout")) (include "slipstream.model.authority" .download) -}}
{{- with .download.authority -}}
- {{ ternary "configMap" "secret" (not (empty .configMap)) }}:
    name: {{ default .secret .configMap }}
    items:
      - {key: {{ .key }}, path: download/ca.crt}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The most pods that load the model, each into a volume of its own; 0 where they share one. */}}
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
