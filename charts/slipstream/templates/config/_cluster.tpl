{{/* cluster.yaml: keys that override the run's YAML in every pod. `slipstream validate` refuses a run that sets them. */}}

{{- define "slipstream.config.cluster" -}}
{{- $name := include "slipstream.fullname" . -}}
{{- $at := dict -}}
{{- range $room := list "replay" "verifier" "learner" -}}
{{- $_ := set $at $room (printf "%s-%s:%s" $name $room (include (printf "slipstream.ports.%s" $room) $)) -}}
{{- end -}}
{{- $ranks := include "slipstream.learner.ranks" . | int -}}
{{- $drain := include "slipstream.actor.drainSeconds" . | float64 -}}
{{- $config := dict
  "name" (include "slipstream.run.name" .)
  "run_dir" (printf "/var/lib/slipstream/%s" (include "slipstream.run.name" .))
  "model" (dict "path" (include "slipstream.model.path" .) "tiny" nil)
  "warmup" nil
  "replay" (merge (dict "address" $at.replay) (include "slipstream.config.redis" . | fromYaml))
  "verifier" (dict "address" $at.verifier)
  "learner" (dict
    "address" $at.learner "ranks" $ranks "stay" true
    "checkpoint" (dict "stop_seconds" (.Values.learner.stopSeconds | float64)))
  "rollout" (dict
    "address" (include "slipstream.listen" (include "slipstream.ports.rollout" .)) "workers" 1)
  "actor" (dict "workers" 1 "drain_seconds" $drain)
  "weights" (dict "port" (include "slipstream.ports.weights" . | int))
  "telemetry" (dict "host" "::" "port" (include "slipstream.ports.metrics" . | int))
  "rpc" (include "slipstream.config.rpc" . | fromYaml) -}}
{{- if ne .Values.tls.mode "none" -}}
{{- /* Actors call rollouts by the addresses of their pods, which are not in a certificate. */}}
{{- $_ := set $config.rollout "server_name" (printf "%s-rollout" $name) -}}
{{- end -}}
{{- if include "slipstream.teacher.enabled" . -}}
{{- $_ := set $config "teacher" (dict "address" (printf "%s-teacher:%s" $name (include "slipstream.ports.teacher" .))) -}}
{{- end -}}
{{- mergeOverwrite $config (include "slipstream.config.devices" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* A component with GPUs must compute on them: a GPU that cannot be used is an error, not a reason to use the CPUs. */}}
{{- define "slipstream.config.devices" -}}
{{- $values := .Values -}}
{{- $devices := dict -}}
{{- range $room := list "learner" "verifier" "teacher" -}}
{{- $runs := or (ne $room "teacher") (include "slipstream.teacher.enabled" $) -}}
{{- if and $runs (gt (int (index $values $room).gpu.count) 0) -}}
{{- $_ := set $devices $room (dict "device" "cuda") -}}
{{- end -}}
{{- end -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- if gt (int .gpu.count) 0 -}}{{- $_ := set $devices "rollout" (dict "device" "cuda") -}}{{- end -}}
{{- end -}}
{{- $devices | toYaml -}}
{{- end -}}

{{- define "slipstream.config.rpc" -}}
{{- if eq .Values.tls.mode "none" -}}
plaintext: true
{{- else -}}
tls:
  certificate: /etc/slipstream/tls/tls.crt
  key: /etc/slipstream/tls/tls.key
  authority: /etc/slipstream/tls/ca.crt
  trust_domain: {{ include "slipstream.tls.trustDomain" . | quote }}
{{- end -}}
{{- end -}}

{{- define "slipstream.config.redis" -}}
{{- $tls := include "slipstream.redis.tls" . -}}
{{- $host := printf "%s-redis:%s" (include "slipstream.fullname" .) (include "slipstream.ports.redis" .) -}}
{{- $user := "replay" -}}
{{- $secret := .Values.redis.auth.existingSecret -}}
{{- $database := 0 -}}
{{- if eq .Values.redis.mode "external" -}}
{{- with .Values.redis.external -}}
{{- $host = printf "%s:%v" (ternary (printf "[%s]" .host) .host (contains ":" .host)) .port -}}
{{- $user = .username -}}
{{- $secret = .existingSecret -}}
{{- $database = .database -}}
{{- end -}}
{{- end -}}
redis_url: {{ printf "%s://%s/%v" (ternary "rediss" "redis" (eq $tls "true")) $host $database }}
{{- if $secret }}
redis_username: {{ $user | quote }}
redis_password_file: /etc/slipstream/redis/password
{{- end }}
{{- if include "slipstream.redis.authorityKey" . }}
redis_authority: /etc/slipstream/redis/ca.crt
{{- end }}
{{- end -}}

{{/* The checksum of the configuration. As an annotation it restarts the pods when the configuration changes. */}}
{{- define "slipstream.config.checksum" -}}
{{- printf "%s\n%s" .Values.run.config (include "slipstream.config.cluster" .) | sha256sum -}}
{{- end -}}
