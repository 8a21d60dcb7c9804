{{/*
What cannot work, said before anything is installed: every guard writes one line for each problem, with what to set
instead; all lines are shown at once. guards.yaml calls this, and nothing else does.
*/}}
{{- define "slipstream.guards" -}}
{{- $found := list -}}
{{- range $subject := list "names" "run" "ranks" "model" "images" "tls" "redis" "learner" "pools" "autoscaling" "verifier" "rewards" "teacher" "network" "monitoring" "accounts" "extras" "containers" "hosts" -}}
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
