{{/* Rules shared by several policies. With an empty list of peers the field is omitted, which permits all peers. */}}
{{- define "chainscope.allowDns" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
    {{- if .Values.openshift.enabled }}
    - {protocol: UDP, port: 5353}
    - {protocol: TCP, port: 5353}
    {{- end }}
{{- end }}

{{- define "chainscope.allowApiServer" -}}
- {{ with .Values.networkPolicy.apiServerTo }}to:
    {{- toYaml . | nindent 4 }}
  {{ end }}ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}

{{- define "chainscope.allowMetrics" -}}
- {{ with .Values.networkPolicy.metricsFrom }}from:
    {{- toYaml . | nindent 4 }}
    # `helm test`.
    - podSelector:
        matchLabels:
          {{- include "chainscope.selector" (list $ "test") | nindent 10 }}
  {{ end }}ports:
    - {protocol: TCP, port: metrics}
{{- end }}
