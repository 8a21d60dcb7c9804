{{/*
Labels and selectors. Takes (dict "root" $ "component" NAME), "pool" for the pods of a pool, "node" for one kind of them, and
"labels" (a map) for an object or a pod that has its own. Its own go before commonLabels; the schema keeps the names of the
chart's labels out of both.
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

{{/* Metadata of an object. Takes the above, "name", and "annotations" (a map) where it has its own. */}}
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

{{/* Metadata of a workload: with the labels and annotations of its room. Takes the above and "room". */}}
{{- define "slipstream.workload.metadata" -}}
{{- include "slipstream.metadata" (merge (dict "labels" .room.labels "annotations" .room.annotations) .) -}}
{{- end -}}
