{{/* The path of the model, its volume, and the init container that makes or downloads it. */}}

{{- define "slipstream.model.path" -}}
{{- $model := .Values.model -}}
{{- if eq $model.mode "warmup" -}}
{{- $inputs := list -}}
{{- range list "model" "warmup" "data" "seed" -}}
{{- $inputs = append $inputs (include "slipstream.run.look" (list $ .)) -}}
{{- end -}}
/models/{{ $inputs | toJson | sha256sum | trunc 16 }}
{{- else if eq $model.mode "download" -}}
/models/{{ $model.download.repository | replace "/" "--" }}-{{ $model.download.revision | replace "/" "--" }}
{{- else -}}
/models{{ with $model.volume.directory }}/{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The volume `models`. Takes (dict "root" $ "component" NAME). */}}
{{- define "slipstream.model.volume" -}}
{{- $model := .root.Values.model -}}
{{- if and (eq $model.mode "warmup") (eq .component "learner") -}}
{{- else if eq $model.mode "volume" -}}
- name: models
  {{- if $model.volume.existingClaim }}
  persistentVolumeClaim: {claimName: {{ $model.volume.existingClaim }}, readOnly: true}
  {{- else }}
  hostPath: {path: {{ $model.volume.hostPath | quote }}, type: Directory}
  {{- end }}
{{- else if eq .component "actor" -}}
{{- /* An actor keeps no weights, so it shares no cache with pods that need them. */}}
- name: models
  emptyDir: {}
{{- else if eq $model.cache.kind "claim" -}}
- name: models
  persistentVolumeClaim: {claimName: {{ $model.cache.existingClaim }}}
{{- else if eq $model.cache.kind "hostPath" -}}
- name: models
  hostPath: {path: {{ $model.cache.hostPath | quote }}, type: Directory}
{{- else -}}
- name: models
  emptyDir: {sizeLimit: {{ $model.cache.sizeLimit }}}
{{- end -}}
{{- end -}}

{{/* Mount of the volume `models`. The learner keeps a model that it made beside its checkpoints. Takes (dict "root" $ "component" NAME "writable" BOOL). */}}
{{- define "slipstream.model.mount" -}}
{{- if and (eq .root.Values.model.mode "warmup") (eq .component "learner") -}}
- {name: checkpoints, mountPath: /models, subPath: models, readOnly: {{ not .writable }}}
{{- else -}}
- {name: models, mountPath: /models, readOnly: {{ not .writable }}}
{{- end -}}
{{- end -}}

{{/* The init container. Takes (dict "root" $ "room" ROOM "component" NAME). Values are arguments of the script, never part of its text. */}}
{{- define "slipstream.model.init" -}}
{{- $values := .root.Values -}}
{{- if ne $values.model.mode "volume" -}}
- name: model
  {{- include "slipstream.container.image" . | nindent 2 }}
  {{- if and (eq $values.model.mode "warmup") (eq .component "actor") }}
  command: [tini, -g, --, sh, -c, {{ include "slipstream.model.tokenizer" . | quote }}, tokenizer]
  args:
    - {{ include "slipstream.model.path" .root }}
  {{- else if eq $values.model.mode "warmup" }}
  command: [tini, -g, --, {{ include "slipstream.container.again" . }}sh, -c, {{ include "slipstream.model.warmup" . | quote }}, warmup]
  args:
    - {{ include "slipstream.model.path" .root }}
    {{- /* A worker receives its weights from the learner, so it needs only the shape of the model and the tokenizer. */}}
    {{- if eq .component "rollout" }}
    - "--steps=0"
    {{- end }}
  {{- else }}
  command: [tini, -g, --, {{ include "slipstream.container.again" . }}python, -m, slipstream.cli.download]
  args:
    - {{ $values.model.download.repository | quote }}
    - {{ $values.model.download.revision | quote }}
    - {{ include "slipstream.model.path" .root }}
    {{- if eq .component "actor" }}
    - --without-weights
    {{- end }}
  {{- end }}
  env:
    {{- include "slipstream.env.home" . | nindent 4 }}
    {{- include "slipstream.env.withoutGpu" . | nindent 4 }}
    {{- if eq $values.model.mode "download" }}
    {{- include "slipstream.model.downloadEnv" $values.model.download | trim | nindent 4 }}
    {{- end }}
  resources:
    {{- toYaml $values.model.initResources | nindent 4 }}
  {{- include "slipstream.container.security" . | nindent 2 }}
  volumeMounts:
    {{- include "slipstream.mounts.base" . | nindent 4 }}
    {{- include "slipstream.model.mount" (merge (dict "writable" true) .) | nindent 4 }}
    {{- if ne .component "actor" }}
    {{- with include "slipstream.data.mount" .root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- with .room.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "slipstream.model.warmup" -}}
output=$1; shift; test -e "$output/config.json" || exec python -m slipstream.cli warmup /etc/slipstream/run.yaml --output "$output" --set learner.device=cpu "$@"
{{- end -}}

{{/* The script for an actor, whose image has no torch: it needs the tokenizer and the context length, and no weights. */}}
{{- define "slipstream.model.tokenizer" -}}
test -e "$1/config.json" || exec python -m slipstream.learner.policy.tiny_files --config /etc/slipstream/run.yaml --output "$1"
{{- end -}}

{{/* The claim with the run's data files, for the pods that read them. */}}
{{- define "slipstream.data.volume" -}}
{{- with .Values.data.existingClaim -}}
- name: data
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end -}}
{{- end -}}

{{/* The claim for a component that reads, checks, or makes a model of the prompts; nothing for another component. Takes (dict "root" $ "component" NAME). */}}
{{- define "slipstream.data.volumeOf" -}}
{{- $makes := and (has .component (list "learner" "rollout")) (ne .root.Values.model.mode "volume") -}}
{{- $checks := and (eq .component "learner") (eq (include "slipstream.check.data" .root) "true") -}}
{{- if or (eq .component "replay") $makes $checks -}}
{{- include "slipstream.data.volume" .root -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.data.mount" -}}
{{- if .Values.data.existingClaim -}}
- {name: data, mountPath: {{ .Values.data.mountPath }}, readOnly: true}
{{- end -}}
{{- end -}}
