{{/* Names of objects, which all begin with the full name. */}}

{{- define "slipstream.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}

{{/* Name of the service account of a room. Takes (dict "root" $ "room" ROOM "component" NAME). */}}
{{- define "slipstream.serviceAccount" -}}
{{- $own := printf "%s-%s" (include "slipstream.fullname" .root) .component -}}
{{- if .room.serviceAccount.create -}}
{{- default $own .room.serviceAccount.name -}}
{{- else -}}
{{- default "default" .room.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.run.name" -}}
{{- default .Release.Name .Values.run.name -}}
{{- end -}}
