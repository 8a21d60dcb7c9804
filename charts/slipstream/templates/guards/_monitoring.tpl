{{/* Guards on PodMonitors and rules. */}}

{{- define "slipstream.guards.monitoring" -}}
{{- with .Values.monitoring.podMonitors -}}
{{- $start := toDate "2006" "2000" -}}
{{- if and .enabled (gt (dateModify .scrapeTimeout $start | unixEpoch | int64) (dateModify .interval $start | unixEpoch | int64)) }}
monitoring.podMonitors.scrapeTimeout is {{ .scrapeTimeout }}, and the operator ignores a monitor whose interval ({{ .interval }}) is shorter: lower the one or raise the other
{{- end }}
{{- end -}}
{{- $own := list "alertname" "severity" "namespace" "release" "component" "pool" "pod" }}
{{- range $name, $_ := .Values.monitoring.rules.additionalRuleLabels }}
{{- if has $name $own }}
monitoring.rules.additionalRuleLabels has {{ $name }}, by which alerts and dashboards tell runs and pods apart: take another name (what your Prometheus chooses PrometheusRules by goes to monitoring.rules.labels)
{{- end }}
{{- end -}}
{{- end -}}
