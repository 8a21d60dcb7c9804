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
{{- $placement := dict -}}
{{- range $key := list "priorityClassName" "runtimeClassName" "nodeSelector" "tolerations" "affinity" -}}
{{- with index $.room $key -}}
{{- $_ := set $placement $key . -}}
{{- end -}}
{{- end -}}
{{- $spread := list -}}
{{- range .room.topologySpreadConstraints -}}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "slipstream.selector" $ | fromYaml)) -}}
{{- $spread = append $spread (merge (deepCopy .) $own) -}}
{{- end -}}
{{- with $spread -}}
{{- $_ := set $placement "topologySpreadConstraints" . -}}
{{- end -}}
{{- with $placement -}}
{{- toYaml . -}}
{{- end -}}
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
