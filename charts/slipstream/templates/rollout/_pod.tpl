{{/*
The pods of a pool. Takes (dict "root" $ "room" POOL "component" "rollout" "pool" NAME "name" NAME "startSeconds" N), and
"node" if several pods share one engine: `head` for the pod that represents the worker, or `member`.
*/}}

{{- define "slipstream.rollout.pod" -}}
{{- $root := .root -}}
{{- $room := .room -}}
{{- $cost := dict "controller.kubernetes.io/pod-deletion-cost" (include "slipstream.rollout.deletionCost" $room) -}}
metadata:
  {{- include "slipstream.pod.metadata" (merge (dict "annotations" $cost) .) | nindent 2 }}
spec:
  {{- include "slipstream.pod.identity" . | nindent 2 }}
  {{- with include "slipstream.pod.placement" . }}
  {{- . | nindent 2 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add $room.preStopSeconds $root.Values.rollout.stopSeconds }}
  {{- with include "slipstream.pod.initContainers" . }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: rollout
      {{- include "slipstream.container.image" . | nindent 6 }}
      command: [tini, --, python, -m, {{ ternary "slipstream.rollout.node" "slipstream.rollout" (eq (default "" .node) "member") }}]
      args:
        {{- include "slipstream.container.config" $root | nindent 8 }}
        {{- with include "slipstream.rollout.place" . }}
        {{- . | nindent 8 }}
        {{- end }}
        - --name=$(POD_NAME)
      env:
        {{- include "slipstream.env.pod" . | nindent 8 }}
        {{- if ne (default "" .node) "member" }}
        - {name: SLIPSTREAM_ROLLOUT_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        {{- end }}
        {{- if .node }}
        - {name: VLLM_HOST_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        {{- end }}
        - {name: HF_HUB_OFFLINE, value: "1"}
        {{- with $room.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with include "slipstream.container.envFrom" . }}
      {{- . | nindent 6 }}
      {{- end }}
      ports:
        {{- if ne (default "" .node) "member" }}
        - {name: grpc, containerPort: {{ include "slipstream.ports.rollout" $root }}}
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
    {{- with $room.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The rank of a pod in its engine. LeaderWorkerSet gives each pod the address of the head and its own index. */}}
{{- define "slipstream.rollout.place" -}}
{{- if .node -}}
- --set=rollout.nodes={{ .room.nodes }}
- --node-rank={{ ternary "0" "$(LWS_WORKER_INDEX)" (eq .node "head") }}
- --master-addr=$(LWS_LEADER_ADDRESS)
- --master-port={{ include "slipstream.ports.engine" .root }}
{{- end -}}
{{- end -}}
