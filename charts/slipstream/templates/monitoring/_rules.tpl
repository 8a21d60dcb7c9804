{{/*
The groups of a file of rules. monitoring.rules.runbookUrl replaces the name of an alert's section by a link to it;
monitoring.rules.additionalRuleLabels adds labels to every alert. Takes (list $ PATH).
*/}}
{{- define "slipstream.monitoring.groups" -}}
{{- $rules := (index . 0).Values.monitoring.rules -}}
{{- $text := (index . 0).Files.Get (index . 1) -}}
{{- with $rules.runbookUrl -}}
{{- $text = $text | replace "runbook: docs/alerts.md#" (printf "runbook_url: %s#" .) -}}
{{- end -}}
{{- $labels := list -}}
{{- range $name, $value := $rules.additionalRuleLabels -}}
{{- $labels = append $labels (printf "%s: %s, " $name (toRawJson $value)) -}}
{{- end -}}
{{- $text | replace "labels: {severity:" (printf "labels: {%sseverity:" (join "" $labels)) -}}
{{- end -}}
