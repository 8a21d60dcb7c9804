{{/*
Labels and selectors. Takes (dict "root" $ "component" NAME), "pool" for the pods of a pool, "node" for `head` or `member` of
an engine, and "labels" (a map) for further labels, which override commonLabels. The schema refuses names of the chart's own
labels in both.
*/}}

{{- define "slipstream.labels" -}}
{{ include "slipstream.selector" . }}
app.kubernetes.io/part-of: slipstream
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with mergeOverwrite (deepCopy .root.Values.commonLabels) (default (dict) .labels) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slipstream.selector" -}}
app.kubernetes.io/name: slipstream
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .pool }}
slipstream.dev/pool: {{ . }}
{{- end }}
{{- with .node }}
slipstream.dev/node: {{ . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object. Takes the arguments of the labels, "name", and "annotations" (a map, optional). */}}
{{- define "slipstream.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "slipstream.labels" . | nindent 2 }}
{{- with mergeOverwrite (deepCopy .root.Values.commonAnnotations) (default (dict) .annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Metadata of a workload, with the labels and annotations of its values. Takes the arguments of an object, and "room". */}}
{{- define "slipstream.workload.metadata" -}}
{{- include "slipstream.metadata" (merge (dict "labels" .room.labels "annotations" .room.annotations) .) -}}
{{- end -}}
