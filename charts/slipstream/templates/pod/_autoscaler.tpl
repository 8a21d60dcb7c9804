{{/* A ScaledObject that keeps the mean of a queue per pod at a target. Takes root, component, name, scaling (the values with minReplicas and maxReplicas), gauge (the metric of the queue), target, and optionally selector (a condition on further labels of the gauge). */}}
{{- define "slipstream.autoscaler.queue" -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "slipstream.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicaCount: {{ .scaling.minReplicas }}
  maxReplicaCount: {{ .scaling.maxReplicas }}
  pollingInterval: {{ .root.Values.autoscaling.keda.pollingInterval }}
  fallback:
    failureThreshold: {{ .root.Values.autoscaling.keda.fallback.failureThreshold }}
    replicas: {{ .scaling.minReplicas }}
    behavior: currentReplicasIfHigher
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ .root.Values.autoscaling.prometheus.address | quote }}
        query: >-
          sum(avg_over_time({{ .gauge }}{release="{{ .root.Release.Name }}",namespace="{{ .root.Release.Namespace }}"{{ with .selector }},{{ . }}{{ end }}}[1m]))
        threshold: {{ .target | quote }}
        ignoreNullValues: "false"
      {{- with .root.Values.autoscaling.prometheus.authenticationRef }}
      {{- if .name }}
      authenticationRef: {name: {{ .name }}, kind: {{ .kind }}}
      {{- end }}
      {{- end }}
{{- end -}}

{{/* A HorizontalPodAutoscaler on CPU use. Takes root, component, name and scaling (its values). */}}
{{- define "slipstream.autoscaler.cpu" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "slipstream.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicas: {{ .scaling.minReplicas }}
  maxReplicas: {{ .scaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .scaling.targetCPUUtilizationPercentage }}}
{{- end -}}
