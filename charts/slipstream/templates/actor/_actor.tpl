{{/* Seconds from the deletion of an actor's pod to SIGKILL. */}}
{{- define "slipstream.actor.graceSeconds" -}}
{{- $drain := include "slipstream.actor.drainSeconds" . | float64 | ceil | int -}}
{{- add .Values.actor.preStopSeconds $drain .Values.actor.marginSeconds -}}
{{- end -}}

{{/* Longest time in seconds until an actor is ready, which it is once a rollout serves a version. */}}
{{- define "slipstream.actor.readySeconds" -}}
{{- $engine := include "slipstream.run.value" (list . "rollout.start_timeout_seconds" 1800) | float64 | ceil | int -}}
{{- add .Values.actor.startSeconds $engine .Values.learner.startSeconds -}}
{{- end -}}
