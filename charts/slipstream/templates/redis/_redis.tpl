{{/* How replay reaches Redis, and what the built-in one is started with. */}}

{{- define "slipstream.redis.tls" -}}
{{- if eq .Values.redis.mode "external" -}}{{ .Values.redis.external.tls }}{{- else -}}{{ ne .Values.tls.mode "none" }}{{- end -}}
{{- end -}}

{{/* Key of the authority's certificate in its Secret; empty without one. */}}
{{- define "slipstream.redis.authorityKey" -}}
{{- if eq (include "slipstream.redis.tls" .) "true" -}}
{{- if eq .Values.redis.mode "external" -}}{{ .Values.redis.external.authorityKey }}{{- else -}}ca.crt{{- end -}}
{{- end -}}
{{- end -}}

{{/* What replay mounts of it: the password, and the certificate of the authority. */}}
{{- define "slipstream.redis.sources" -}}
{{- $authority := include "slipstream.redis.authorityKey" . -}}
{{- if eq .Values.redis.mode "external" -}}
{{- with .Values.redis.external.existingSecret -}}
- secret:
    name: {{ . }}
    items:
      - {key: {{ $.Values.redis.external.passwordKey }}, path: redis/password}
      {{- with $authority }}
      - {key: {{ . }}, path: redis/ca.crt}
      {{- end }}
{{- end -}}
{{- else -}}
- secret:
    name: {{ .Values.redis.auth.existingSecret }}
    items:
      - {key: {{ .Values.redis.auth.key }}, path: redis/password}
{{- with $authority }}
- secret:
    name: {{ include "slipstream.tls.secret" (dict "root" $ "role" "redis") }}
    items:
      - {key: {{ . }}, path: redis/ca.crt}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Arguments of redis-server beyond those of start.sh; without TLS they replace its ports. */}}
{{- define "slipstream.redis.arguments" -}}
- --maxmemory
- {{ .Values.redis.maxMemoryMiB }}mb
{{- if ne .Values.redis.appendFsync "always" }}
- --appendfsync
- {{ .Values.redis.appendFsync }}
{{- end }}
{{- if eq .Values.tls.mode "none" }}
- --tls-port
- "0"
- --port
- {{ include "slipstream.ports.redis" . | quote }}
{{- end }}
{{- end -}}

{{/* The claim with its append-only file: an object of its own, since a StatefulSet's template never changes. */}}
{{- define "slipstream.redis.claim" -}}
{{- default (printf "%s-redis" (include "slipstream.fullname" .)) .Values.redis.persistence.existingClaim -}}
{{- end -}}
