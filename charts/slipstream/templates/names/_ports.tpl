{{/* The ports of the system, each in one place. */}}
{{- define "slipstream.ports.replay" -}}50051{{- end -}}
{{- define "slipstream.ports.verifier" -}}50052{{- end -}}
{{- define "slipstream.ports.learner" -}}50053{{- end -}}
{{- define "slipstream.ports.rollout" -}}50054{{- end -}}
{{- define "slipstream.ports.teacher" -}}50055{{- end -}}
{{- define "slipstream.ports.weights" -}}29500{{- end -}}
{{- define "slipstream.ports.ranks" -}}29400{{- end -}}
{{- define "slipstream.ports.engine" -}}29600{{- end -}}
{{- define "slipstream.ports.redis" -}}6379{{- end -}}
{{- define "slipstream.ports.metrics" -}}9464{{- end -}}
