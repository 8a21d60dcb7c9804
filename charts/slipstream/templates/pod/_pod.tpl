{{/* Parts of the pods of all components. All take (dict "root" $ "room" ROOM "component" NAME), and "pool". */}}

{{- define "slipstream.pod.metadata" -}}
labels:
  {{- include "slipstream.labels" (merge (dict "labels" .room.podLabels) .) | nindent 2 }}
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
automountServiceAccountToken: {{ and (eq .component "console") (default false .room.allowScaling) }}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "slipstream.pod.securityContext" . | nindent 2 }}
{{- with include "slipstream.pod.host" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The host namespaces, the DNS settings and the device claims of a pod. */}}
{{- define "slipstream.pod.host" -}}
{{- $host := dict -}}
{{- range $key := list "hostNetwork" "hostIPC" "dnsPolicy" "dnsConfig" "resourceClaims" -}}
{{- with index $.room $key -}}
{{- $_ := set $host $key . -}}
{{- end -}}
{{- end -}}
{{- if and .room.hostNetwork (not .room.dnsPolicy) -}}
{{- $_ := set $host "dnsPolicy" "ClusterFirstWithHostNet" -}}
{{- end -}}
{{- with $host -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* The security context of a pod: the component's overrides that of all pods. A null field is left to the cluster, such as user IDs to OpenShift. */}}
{{- define "slipstream.pod.securityContext" -}}
{{- $context := mergeOverwrite (deepCopy .root.Values.podSecurityContext) .room.podSecurityContext -}}
{{- range $key, $value := .room.podSecurityContext -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $context $key -}}{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "slipstream.pod.placement" -}}
{{- $placement := dict -}}
{{- range $key := list "schedulerName" "priorityClassName" "runtimeClassName" "nodeSelector" "tolerations" "affinity" -}}
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

{{/* The user's init containers, then those that make or download the model and, in the learner, check the run. */}}
{{- define "slipstream.pod.initContainers" -}}
{{- $extra := include "slipstream.container.extra" (merge (dict "extra" .room.initContainers) .) | trim -}}
{{- $own := "" -}}
{{- if eq .component "learner" -}}
{{- $own = include "slipstream.learner.initial" . -}}
{{- else if has .component (list "rollout" "actor") -}}
{{- $own = include "slipstream.model.init" . -}}
{{- end -}}
{{- with list $extra $own | compact -}}
initContainers:
  {{- join "\n" . | nindent 2 }}
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

{{/* Also takes "name". */}}
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
