{{/*
The pods of the learner, all alike. Takes
(dict "root" $ "room" ROOM "component" "learner" "name" NAME "startSeconds" N).
*/}}

{{- define "slipstream.learner.pod" -}}
{{- $root := .root -}}
{{- $room := .room -}}
metadata:
  {{- include "slipstream.pod.metadata" . | nindent 2 }}
spec:
  {{- include "slipstream.pod.identity" . | nindent 2 }}
  {{- with include "slipstream.pod.placement" . }}
  {{- . | nindent 2 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add $room.preStopSeconds $room.stopSeconds }}
  {{- with include "slipstream.pod.initContainers" . }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: learner
      {{- include "slipstream.container.image" . | nindent 6 }}
      {{- include "slipstream.learner.command" $root | nindent 6 }}
      env:
        {{- include "slipstream.env.pod" . | nindent 8 }}
        - {name: HF_HUB_OFFLINE, value: "1"}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: SLIPSTREAM_LEARNER_ADDRESS, value: {{ include "slipstream.ports.learner" $root | include "slipstream.listen" | quote }}}
        - {name: SLIPSTREAM_WEIGHTS_HOST, value: $(POD_IP)}
        {{- if gt (int $room.nodes) 1 }}
        - name: NODE_RANK
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ include "slipstream.learner.indexLabel" $root }}']"}}
        {{- end }}
        {{- with $room.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with include "slipstream.container.envFrom" . }}
      {{- . | nindent 6 }}
      {{- end }}
      ports:
        - {name: grpc, containerPort: {{ include "slipstream.ports.learner" $root }}}
        - {name: weights, containerPort: {{ include "slipstream.ports.weights" $root }}}
        {{- if gt (int $room.nodes) 1 }}
        - {name: ranks, containerPort: {{ include "slipstream.ports.ranks" $root }}}
        {{- end }}
        - {name: metrics, containerPort: {{ include "slipstream.ports.metrics" $root }}}
      {{- include "slipstream.container.probes" . | nindent 6 }}
      {{- with include "slipstream.container.preStop" . }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- include "slipstream.container.resources" . | nindent 6 }}
      {{- include "slipstream.container.security" . | nindent 6 }}
      volumeMounts:
        {{- include "slipstream.mounts.base" . | nindent 8 }}
        {{- include "slipstream.mounts.shared" . | nindent 8 }}
        {{- include "slipstream.model.mount" . | nindent 8 }}
        - {name: checkpoints, mountPath: /var/lib/slipstream, subPath: runs}
        {{- with $room.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with include "slipstream.container.sidecars" . }}
    {{- . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "slipstream.volumes.base" . | nindent 4 }}
    {{- include "slipstream.volumes.shared" . | nindent 4 }}
    {{- with include "slipstream.model.volume" . }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "slipstream.data.volumeOf" . }}
    {{- . | nindent 4 }}
    {{- end }}
    - name: checkpoints
      persistentVolumeClaim: {claimName: {{ include "slipstream.learner.claim" $root }}}
    {{- with $room.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The label of a pod that says which of the learner's nodes it is. */}}
{{- define "slipstream.learner.indexLabel" -}}
{{- ternary "leaderworkerset.sigs.k8s.io/worker-index" "apps.kubernetes.io/pod-index" (eq .Values.learner.workload "LeaderWorkerSet") -}}
{{- end -}}
