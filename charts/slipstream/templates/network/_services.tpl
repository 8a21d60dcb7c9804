{{/* The families of addresses of every Service; nothing where the cluster decides. */}}
{{- define "slipstream.service.families" -}}
{{- with .Values.network.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.network.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end -}}
