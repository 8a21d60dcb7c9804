{{/* Guards on what Prometheus is told. */}}

{{- define "slipstream.guards.monitoring" -}}
{{- with .Values.monitoring.podMonitors -}}
{{- $start := toDate "2006" "2000" -}}
{{- if and .enabled (gt (dateModify .scrapeTimeout $start | unixEpoch | int64) (dateModify .interval $start | unixEpoch | int64)) }}
monitoring.podMonitors.scrapeTimeout is {{ .scrapeTimeout }}, and the operator ignores a monitor whose interval ({{ .interval }}) is shorter: lower the one or raise the other
{{- end }}
{{- end -}}
{{- end -}}
