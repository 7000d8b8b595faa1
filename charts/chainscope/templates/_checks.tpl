{{/* Checks against objects of the cluster: what the API server or Helm would refuse without the remedy. Without a cluster, as in
     `helm template`, lookup finds nothing. */}}

{{/* Helm refuses CRDs that another release has left. */}}
{{- define "chainscope.checkCrds" -}}
{{- $foreign := list -}}
{{- $owner := list "" "" -}}
{{- range $crd := list "tezosnodes.chainscope.dev" "nodetraces.chainscope.dev" -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $crd -}}
{{- if and $.Values.crds.install $found -}}
{{- $annotations := $found.metadata.annotations | default dict -}}
{{- $name := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if not (and (eq $name $.Release.Name) (eq $namespace $.Release.Namespace)) -}}
{{- $operators := list -}}
{{- range (lookup "apps/v1" "Deployment" ($namespace | default $.Release.Namespace) "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if and $name (eq (get $labels "app.kubernetes.io/instance") $name) (eq (get $labels "app.kubernetes.io/component") "operator") -}}
{{- $operators = append $operators .metadata.name -}}
{{- end -}}
{{- end -}}
{{- if $operators -}}
{{- include "chainscope.otherRelease" (list $name $namespace) | fail -}}
{{- end -}}
{{- $foreign = append $foreign $crd -}}
{{- $owner = list $name $namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $foreign -}}
{{- include "chainscope.foreignCrds" (list . $foreign $owner) | fail -}}
{{- end -}}
{{- end -}}

{{- define "chainscope.otherRelease" }}

The release {{ index . 0 }} in namespace {{ index . 1 }} is running: two would both record every node. Upgrade it, or uninstall it first, which
keeps TezosNodes and NodeTraces:

  helm uninstall {{ index . 0 }} --namespace {{ index . 1 }}
{{ end -}}

{{- define "chainscope.foreignCrds" }}
{{- $root := index . 0 }}
{{- $crds := index . 1 | join " " }}
{{- $owner := index . 2 }}

The CustomResourceDefinitions {{ $crds }} {{ if index $owner 0 }}were kept from the release {{ index $owner 0 }} in namespace {{ index $owner 1 }}{{ else }}were installed without Helm{{ end }}. To have this
release own them, with all resources as they are, and then install again:

  kubectl label --overwrite crd {{ $crds }} app.kubernetes.io/managed-by=Helm
  kubectl annotate --overwrite crd {{ $crds }} meta.helm.sh/release-name={{ $root.Release.Name }} meta.helm.sh/release-namespace={{ $root.Release.Namespace }}

Or pass --set crds.install=false: then this release does not upgrade them, and the operator needs both.
{{ end -}}

{{/* volumeClaimTemplates of a StatefulSet are immutable. */}}
{{- define "chainscope.checkClaim" -}}
{{- $name := printf "%s-aggregator" (include "chainscope.fullname" .) -}}
{{- $found := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if $found -}}
{{- $old := first ($found.spec.volumeClaimTemplates | default list) | default dict -}}
{{- $new := include "chainscope.claim" . | fromYaml -}}
{{- $changes := list -}}
{{- $grown := "" -}}
{{- if ne (empty $old) (empty $new) -}}
{{- $changes = append $changes (empty $new | ternary "to another volume" "to a claim of its own") -}}
{{- else if $new -}}
{{- $oldSize := $old.spec.resources.requests.storage -}}
{{- $newSize := $new.spec.resources.requests.storage -}}
{{- $difference := subf (float64 (include "chainscope.bytes" $newSize)) (float64 (include "chainscope.bytes" $oldSize)) -}}
{{- if lt $difference 0.0 -}}
{{- include "chainscope.smallerClaim" (list $oldSize $newSize) | fail -}}
{{- else if gt $difference 0.0 -}}
{{- $changes = append $changes (printf "from %v to %v" $oldSize $newSize) -}}
{{- $grown = $newSize -}}
{{- end -}}
{{- if ne (toJson $old.spec.accessModes) (toJson $new.spec.accessModes) -}}
{{- $changes = append $changes "of accessModes" -}}
{{- end -}}
{{- if ne (pick $old.spec "storageClassName" | toJson) (pick $new.spec "storageClassName" | toJson) -}}
{{- $changes = append $changes "of storageClassName" -}}
{{- end -}}
{{- if ne (toJson ($old.metadata.annotations | default dict)) (toJson ($new.metadata.annotations | default dict)) -}}
{{- $changes = append $changes "of annotations" -}}
{{- end -}}
{{- end -}}
{{- if $changes -}}
{{- include "chainscope.changedClaim" (list . $name (join ", " $changes) $grown) | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chainscope.smallerClaim" }}

aggregator.persistence.size: a volume cannot be made smaller, from {{ index . 0 }} to {{ index . 1 }}. Keep --set aggregator.persistence.size={{ index . 0 }}; limit
the records with spec.retention of the TezosNodes.
{{ end -}}

{{- define "chainscope.changedClaim" }}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $grown := index . 3 }}

aggregator.persistence changes the volume claim {{ index . 2 }}. Kubernetes does not change the claim template of a
StatefulSet: delete the StatefulSet without its pod and claim, and then upgrade again with the same values, which creates it anew.
Nothing stops meanwhile, and no records are lost{{ if $grown }}.
The claim itself grows if its StorageClass has allowVolumeExpansion: true; if not, the first command is refused and nothing is changed{{ end }}:
{{ if $grown }}
  kubectl -n {{ $root.Release.Namespace }} patch persistentvolumeclaim data-{{ $name }}-0 --patch '{"spec": {"resources": {"requests": {"storage": "{{ $grown }}"}}}}'
{{- end }}
  kubectl -n {{ $root.Release.Namespace }} delete statefulset {{ $name }} --cascade=orphan
{{ end -}}
