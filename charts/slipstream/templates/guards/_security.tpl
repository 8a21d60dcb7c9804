{{/* Guards on certificates, Redis, networks and accounts. */}}

{{- define "slipstream.guards.tls" -}}
{{- $tls := .Values.tls -}}
{{- if eq $tls.mode "certManager" -}}
{{- if and $tls.certManager.createAuthority $tls.certManager.issuerRef.name }}
tls.certManager has an issuerRef and makes an authority too: set createAuthority to false, or issuerRef.name to ""
{{- else if not (or $tls.certManager.createAuthority $tls.certManager.issuerRef.name) }}
tls.certManager has no issuer: set issuerRef.name, or createAuthority to true
{{- end }}
{{- if le (trimSuffix "h" $tls.certManager.duration | int) (trimSuffix "h" $tls.certManager.renewBefore | int) }}
tls.certManager.renewBefore is {{ $tls.certManager.renewBefore }}, and a certificate lives for {{ $tls.certManager.duration }}: set renewBefore to a third of the duration
{{- end }}
{{- else if eq $tls.mode "secrets" -}}
{{- range splitList " " (include "slipstream.tls.roles" .) -}}
{{- if not (index $tls.secrets .) }}
tls.mode is secrets, and tls.secrets.{{ . }} is empty: name a Secret with tls.crt, tls.key and ca.crt (`slipstream certs` makes the files, `kubectl create secret generic` the Secret)
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.guards.redis" -}}
{{- $redis := .Values.redis -}}
{{- if eq $redis.mode "external" -}}
{{- if not $redis.external.host }}
redis.mode is external, without a host: set redis.external.host
{{- end }}
{{- $plaintext := and (not $redis.external.tls) $redis.external.allowPlaintext -}}
{{- if not (or $redis.external.existingSecret $plaintext) }}
redis.mode is external, without its Secret: set redis.external.existingSecret to one with the password of the user {{ $redis.external.username }}
{{- end }}
{{- if not (or $redis.external.tls $redis.external.allowPlaintext (eq .Values.tls.mode "none")) }}
redis.external.tls is false, and prompts, completions and the password would cross the network in the clear: set it to true, or redis.external.allowPlaintext to true where the network is private
{{- end }}
{{- else -}}
{{- if not $redis.auth.existingSecret }}
redis.auth.existingSecret is empty: `kubectl create secret generic {{ .Release.Name }}-redis-password --namespace {{ .Release.Namespace }} --from-literal=password="$(openssl rand -hex 32)"`, and set it to {{ .Release.Name }}-redis-password
{{- end }}
{{- $limit := toString $redis.resources.limits.memory -}}
{{- $bytes := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- $mib := divf (mulf (regexFind "^[0-9.]+" $limit | float64) (dig (regexFind "[A-Za-z]*$" $limit) 0.0 $bytes)) 1048576.0 -}}
{{- if and (gt $mib 0.0) (gt (float64 $redis.maxMemoryMiB) (mulf $mib 0.8)) }}
redis.maxMemoryMiB is {{ $redis.maxMemoryMiB }}, and the container may have {{ $limit }}: rewriting the append-only file needs room, so set it to {{ mulf $mib 0.8 | floor | int }} at most, or raise redis.resources.limits.memory
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.guards.network" -}}
{{- if and (gt (len .Values.network.ipFamilies) 1) (not (hasSuffix "DualStack" .Values.network.ipFamilyPolicy)) }}
network.ipFamilies has two families, and network.ipFamilyPolicy is {{ default "empty" .Values.network.ipFamilyPolicy }}: set it to PreferDualStack or RequireDualStack, or name one family
{{- end }}
{{- with .Values.network.ephemeralPorts -}}
{{- $first := regexFind "^[0-9]+" . | int -}}
{{- $last := regexFind "[0-9]+$" . | int -}}
{{- $store := include "slipstream.ports.ranks" $ | int -}}
{{- if or (gt $first $last) (gt $last 65535) }}
network.ephemeralPorts is {{ . }}, which is no range of ports: write the first and the last, such as 32768-60999
{{- else if and (le $first $store) (le $store $last) }}
network.ephemeralPorts is {{ . }}, and rollouts would reach torch's store at {{ $store }}: begin above it, or set "" to open all ports to them
{{- end }}
{{- end -}}
{{- if .Values.network.policies -}}
{{- if not .Values.network.dns.peers }}
network.dns.peers is empty, and no pod could resolve a name: set where the cluster's DNS runs, or network.policies to false
{{- end }}
{{- if and .Values.monitoring.podMonitors.enabled (not .Values.network.prometheus.peers) }}
network.prometheus.peers is empty, and Prometheus could scrape no pod: set where it runs, or monitoring.podMonitors.enabled to false
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.guards.accounts" -}}
{{- range $where := list "learner" "rollout" "actor" "verifier" "teacher" "replay" "console" "redis" "tests" -}}
{{- $account := (index $.Values $where).serviceAccount -}}
{{- if not (or $account.create $account.name) }}
{{ $where }}.serviceAccount is not created and has no name, and components share no service account: set create to true, or name
{{- end }}
{{- end }}
{{- end -}}
