{{/* Identities, and the Secrets with their certificates. */}}

{{- define "slipstream.tls.trustDomain" -}}
{{- default (printf "%s.%s.slipstream" .Release.Name .Release.Namespace) .Values.tls.trustDomain -}}
{{- end -}}

{{/* Takes (dict "root" $ "role" NAME). */}}
{{- define "slipstream.tls.secret" -}}
{{- if eq .root.Values.tls.mode "secrets" -}}
{{- index .root.Values.tls.secrets .role -}}
{{- else -}}
{{- printf "%s-%s-tls" (include "slipstream.fullname" .root) .role -}}
{{- end -}}
{{- end -}}

{{/* The roles that need a certificate, separated by blanks. `console` is the role of the console, and of HTTP clients of the verifier. */}}
{{- define "slipstream.tls.roles" -}}
learner rollout actor verifier replay{{ if include "slipstream.teacher.enabled" . }} teacher{{ end }}{{ if or .Values.console.enabled (and .Values.verifier.http.enabled (eq .Values.tls.mode "certManager")) }} console{{ end }}{{ if .Values.tests.enabled }} probe{{ end }}{{ if eq .Values.redis.mode "builtIn" }} redis{{ end }}
{{- end -}}

{{/* The issuer of the certificates. */}}
{{- define "slipstream.tls.issuer" -}}
{{- if .Values.tls.certManager.createAuthority -}}
name: {{ include "slipstream.fullname" . }}-authority
kind: Issuer
group: cert-manager.io
{{- else -}}
{{- toYaml .Values.tls.certManager.issuerRef -}}
{{- end -}}
{{- end -}}
