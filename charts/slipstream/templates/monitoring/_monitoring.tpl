{{/* Name of the object that is made from a file. Takes (list $ KIND PATH). */}}
{{- define "slipstream.monitoring.name" -}}
{{- $stem := base (index . 2) | trimSuffix (ext (index . 2)) | lower | replace "_" "-" -}}
{{- printf "%s-%s-%s" (include "slipstream.fullname" (index . 0)) (index . 1) $stem -}}
{{- end -}}
