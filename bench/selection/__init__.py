"""Selection and scaling of variants, beside INFaaS' published figures."""
