{{/* What the pods of all rooms have in common. All take (dict "root" $ "room" ROOM "component" NAME), and "pool". */}}

{{- define "slipstream.pod.metadata" -}}
labels:
  {{- include "slipstream.labels" . | nindent 2 }}
  {{- with .room.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ default (include "slipstream.config.checksum" .root) .checksum }}
  {{- with .annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with mergeOverwrite (deepCopy .root.Values.commonAnnotations) .room.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "slipstream.pod.identity" -}}
serviceAccountName: {{ include "slipstream.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- mergeOverwrite (deepCopy .root.Values.podSecurityContext) .room.podSecurityContext | toYaml | nindent 2 }}
{{- end -}}

{{- define "slipstream.pod.placement" -}}
{{- $context := . -}}
{{- with .room.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .room.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .room.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .room.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .room.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .room.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "slipstream.selector" $context | fromYaml)) }}
  - {{- merge (deepCopy .) $own | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.serviceAccount.object" -}}
{{- if .room.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- $own := dict "name" (include "slipstream.serviceAccount" .) "annotations" .room.serviceAccount.annotations }}
  {{- include "slipstream.metadata" (merge $own .) | nindent 2 }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{/* Takes the above and "name". */}}
{{- define "slipstream.disruption" -}}
{{- if .room.podDisruptionBudget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "slipstream.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .room.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "slipstream.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}
