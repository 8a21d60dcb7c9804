{{/* How replay connects to Redis, and how the built-in Redis is started. */}}

{{- define "slipstream.redis.tls" -}}
{{- if eq .Values.redis.mode "external" -}}{{ .Values.redis.external.tls }}{{- else -}}{{ ne .Values.tls.mode "none" }}{{- end -}}
{{- end -}}

{{/* Key of the authority's certificate in the Secret of Redis; empty if there is no such certificate. */}}
{{- define "slipstream.redis.authorityKey" -}}
{{- if eq (include "slipstream.redis.tls" .) "true" -}}
{{- if eq .Values.redis.mode "external" -}}{{ .Values.redis.external.authorityKey }}{{- else -}}ca.crt{{- end -}}
{{- end -}}
{{- end -}}

{{/* Sources of replay's volume: the password of Redis, and the certificate of its authority. */}}
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

{{/* Arguments of redis-server after those of start.sh. Without TLS they replace the ports of start.sh. */}}
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

{{/* The claim with the append-only file. It is a separate object, because the claim template of a StatefulSet cannot change. */}}
{{- define "slipstream.redis.claim" -}}
{{- default (printf "%s-redis" (include "slipstream.fullname" .)) .Values.redis.persistence.existingClaim -}}
{{- end -}}
