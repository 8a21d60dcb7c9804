{{/* How replay reaches Redis, and how the built-in one is started. */}}

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
- secret:
    name: {{ .Values.redis.external.existingSecret }}
    items:
      - {key: {{ .Values.redis.external.passwordKey }}, path: redis/password}
      {{- with $authority }}
      - {key: {{ . }}, path: redis/ca.crt}
      {{- end }}
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

{{/* The list of users is made at the start: the password is never in an argument or in the configuration. */}}
{{- define "slipstream.redis.start" -}}
set -eu
umask 077
hash=$(tr -d '\n' </etc/redis/password/password | sha256sum | cut -d ' ' -f 1)
{
  echo "user default reset off"
  echo "user probe reset on nopass -@all +ping"
  echo "user replay reset on #$hash ~slipstream:* -@all +@read +@write +@scripting +@connection +@transaction +time +info -@dangerous"
} >/run/redis/users.acl
exec redis-server /etc/redis/redis.conf
{{- end -}}

{{- define "slipstream.redis.conf" -}}
{{- if ne .Values.tls.mode "none" -}}
port 0
tls-port {{ include "slipstream.ports.redis" . }}
tls-cert-file /etc/redis/tls/tls.crt
tls-key-file /etc/redis/tls/tls.key
tls-ca-cert-file /etc/redis/tls/ca.crt
tls-auth-clients no
tls-protocols "TLSv1.2 TLSv1.3"
{{- else -}}
port {{ include "slipstream.ports.redis" . }}
{{- end }}
bind * -::*
protected-mode no
aclfile /run/redis/users.acl
dir /data
save ""
appendonly yes
appendfsync {{ .Values.redis.appendFsync }}
maxmemory {{ .Values.redis.maxMemoryMiB }}mb
maxmemory-policy noeviction
tcp-keepalive 60
{{- end -}}
