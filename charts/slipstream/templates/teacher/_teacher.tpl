{{/* The teacher of a run that distills. */}}

{{/* "true" if the run has algorithm.distillation; empty if not. */}}
{{- define "slipstream.teacher.enabled" -}}
{{- $look := include "slipstream.run.look" (list . "algorithm.distillation") | fromJson -}}
{{- if and $look.found (kindIs "map" $look.value) -}}true{{- end -}}
{{- end -}}

{{- define "slipstream.teacher.volumes" -}}
{{- with .Values.teacher.models -}}
{{- if .existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .existingClaim }}, readOnly: true}
{{- else if .hostPath }}
- name: models
  hostPath: {path: {{ .hostPath | quote }}, type: Directory}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "slipstream.teacher.mounts" -}}
{{- with .Values.teacher.models -}}
{{- if or .existingClaim .hostPath }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end -}}
{{- end -}}
