{{/*
Refuses values that cannot work, before anything is installed. Every guard writes one line per problem, with what to set
instead, and all lines are shown together. Only guards.yaml calls this template.
*/}}
{{- define "slipstream.guards" -}}
{{- $found := list -}}
{{- range $subject := list "names" "run" "ranks" "model" "images" "tls" "redis" "learner" "console" "pools" "autoscaling" "verifier" "rewards" "tools" "teacher" "network" "monitoring" "accounts" "extras" "containers" "hosts" -}}
{{- range splitList "\n" (include (printf "slipstream.guards.%s" $subject) $) -}}
{{- with trim . -}}
{{- $found = append $found (printf "  - %s" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $found -}}
{{- fail (printf "\n\nthese values cannot work:\n%s\n" (join "\n" .)) -}}
{{- end -}}
{{- end -}}
