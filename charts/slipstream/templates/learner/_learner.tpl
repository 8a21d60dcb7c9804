{{/* The learner's command and its checkpoints. */}}

{{/* One rank is one process; torchrun starts several ranks, with the rendezvous at the first pod. */}}
{{- define "slipstream.learner.command" -}}
{{- if eq (include "slipstream.learner.ranks" .) "1" -}}
command: [tini, --, python, -m, slipstream.learner]
args:
{{- else -}}
command: [tini, --, python, -m, slipstream.learner.torchrun]
args:
  - {{ include "slipstream.learner.ranksPerNode" . | quote }}
  {{- if gt (int .Values.learner.nodes) 1 }}
  - --nnodes={{ .Values.learner.nodes }}
  - --node-rank=$(NODE_RANK)
  - --master-addr={{ include "slipstream.learner.meeting" . }}
  {{- end }}
  - --master-port={{ include "slipstream.ports.ranks" . }}
{{- end }}
  {{- include "slipstream.container.config" . | nindent 2 }}
  - --name=$(POD_NAME)
{{- end -}}

{{/* The rendezvous address of the ranks: the first pod, also before it is ready. LeaderWorkerSet sets the subdomain of its
pods itself, so there the Service for the ranks selects the first pod alone. */}}
{{- define "slipstream.learner.meeting" -}}
{{- $name := printf "%s-learner" (include "slipstream.fullname" .) -}}
{{- if eq .Values.learner.workload "StatefulSet" -}}{{ $name }}-0.{{- end -}}
{{ $name }}-ranks
{{- end -}}

{{/* The claim of all pods of the learner. It is a separate object, because the claim template of a StatefulSet cannot change. */}}
{{- define "slipstream.learner.claim" -}}
{{- default (printf "%s-checkpoints" (include "slipstream.fullname" .)) .Values.learner.checkpoints.existingClaim -}}
{{- end -}}
