{{/*
Every component of this release with its values, as JSON {rooms: [{where, component, room}]}. `where` is the path of the
values for messages. Each pool is a component. Takes the root.
*/}}
{{- define "slipstream.rooms" -}}
{{- $rooms := list -}}
{{- $names := list "learner" "actor" "verifier" "replay" -}}
{{- if include "slipstream.teacher.enabled" . -}}{{- $names = append $names "teacher" -}}{{- end -}}
{{- if .Values.console.enabled -}}{{- $names = append $names "console" -}}{{- end -}}
{{- if eq .Values.redis.mode "builtIn" -}}{{- $names = append $names "redis" -}}{{- end -}}
{{- if .Values.tests.enabled -}}{{- $names = append $names "tests" -}}{{- end -}}
{{- range $names -}}
{{- $rooms = append $rooms (dict "where" . "component" (ternary "test" . (eq . "tests")) "room" (index $.Values .)) -}}
{{- end -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $rooms = append $rooms (dict "where" (printf "rollout.pools[%s]" .name) "component" "rollout" "room" .) -}}
{{- end -}}
{{- dict "rooms" $rooms | toJson -}}
{{- end -}}
