
# Weights that functions fetch, by their digests.
while read -r sum path; do
  aws s3 cp --only-show-errors "s3://${WeightsBucket}/weights/$sum" "/opt/serfer/plans/@digest@/$path"
  sha256sum --check --status <<< "$sum  /opt/serfer/plans/@digest@/$path"
done <<'END'
@files@
END
