fetch() { # a layer version's contents, which have to have the digest that Lambda tells
  local url digest
  read -r url digest < <(aws lambda get-layer-version-by-arn --arn "$1" \
    --query 'Content.[Location,CodeSha256]' --output text)
  curl -sSf --retry 5 --output /opt/layer.zip "$url"
  digest=$(base64 --decode <<< "$digest" | od -An -v -tx1 | tr -d ' \n')
  sha256sum --check --status <<< "$digest  /opt/layer.zip"
  unzip -q -o /opt/layer.zip -d /opt/serfer
  rm /opt/layer.zip
}
