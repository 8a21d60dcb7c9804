{{/* The learner's command and its checkpoints. */}}

{{/* One rank is a process; several are torchrun's, over machines that meet at the first. */}}
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

{{/* Where the ranks of several nodes meet: at the first pod, before it is ready. LeaderWorkerSet chooses the subdomain of its
pods itself, so that with it the Service for the ranks has that pod alone. */}}
{{- define "slipstream.learner.meeting" -}}
{{- $name := printf "%s-learner" (include "slipstream.fullname" .) -}}
{{- if eq .Values.learner.workload "StatefulSet" -}}{{ $name }}-0.{{- end -}}
{{ $name }}-ranks
{{- end -}}

{{/* The claim that all of its pods share: an object of its own, since a StatefulSet's template never changes. */}}
{{- define "slipstream.learner.claim" -}}
{{- default (printf "%s-checkpoints" (include "slipstream.fullname" .)) .Values.learner.checkpoints.existingClaim -}}
{{- end -}}
