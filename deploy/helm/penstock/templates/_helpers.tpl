{{- define "penstock.name" -}}
{{- contains "penstock" .Release.Name | ternary .Release.Name (printf "%s-penstock" .Release.Name) | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "penstock.tokenSecret" -}}
{{- .Values.http.tokenSecret.name | default (printf "%s-http" (include "penstock.name" .)) }}
{{- end }}

{{- /* The pods' part of Prometheus' labels; job is the Service's name, as the ServiceMonitor sets it. */ -}}
{{- define "penstock.series" -}}
{{ printf "{namespace=%q, job=%q}" .Release.Namespace (include "penstock.name" .) }}
{{- end }}

{{- /* Records behind; while state is restored, as many as ask for the pods that there are. */ -}}
{{- define "penstock.scalingQuery" -}}
{{- $series := include "penstock.series" . -}}
(sum(kafka_consumer_fetch_manager_records_lag{{ $series }}) unless on() (sum(kafka_stream_state_updater_active_restoring_tasks{{ $series }}) > 0)) or on() ({{ int .Values.autoscaling.recordsBehindPerPod }} * count(kafka_stream_alive_stream_threads{{ $series }}))
{{- end }}
