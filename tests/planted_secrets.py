"""Kinds and places of secrets, written from what providers and file formats document.

`CASES` are (name, text, secret): the secret must be gone from the text. Values are drawn anew from
a seed by the documented alphabet and length, so that none of them is anybody's.
"""

import base64
import json
import random
import string
from collections.abc import Iterator

_DRAWN = random.Random(20261122)
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
B64 = ALNUM + "+/"
URL = ALNUM + "-_"
BASE32 = string.ascii_uppercase + "234567"


def draw(alphabet: str, length: int) -> str:
    """Draw a value; one of letters and digits has both, as random ones of some length have."""
    value = "".join(_DRAWN.choices(alphabet, k=length))
    mixed = any(map(str.isdigit, alphabet)) and any(map(str.isalpha, alphabet)) and length >= 12
    if mixed and (value.isalpha() or value.isdigit()):
        return draw(alphabet, length)
    return value


def uuid() -> str:
    return "-".join(draw(HEX, n) for n in (8, 4, 4, 4, 12))


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# What a token of a provider looks like.
TOKENS = {
    "github classic": f"ghp_{draw(ALNUM, 36)}",
    "github oauth": f"gho_{draw(ALNUM, 36)}",
    "github app": f"ghs_{draw(ALNUM, 36)}",
    "github fine-grained": f"github_pat_{draw(ALNUM, 22)}_{draw(ALNUM, 59)}",
    "gitlab personal": f"glpat-{draw(URL, 20)}",
    "gitlab routable": f"glpat-{draw(URL, 27)}.01.{draw(LOWER, 9)}",
    "gitlab deploy": f"gldt-{draw(URL, 20)}",
    "gitlab pipeline trigger": f"glptt-{draw(HEX, 40)}",
    "gitlab runner": f"glrt-{draw(URL, 20)}",
    "gitlab ci job": f"glcbt-64_{draw(URL, 20)}",
    "bitbucket app password": f"ATBB{draw(ALNUM, 32)}",
    "openai legacy": f"sk-{draw(ALNUM, 48)}",
    "openai project": f"sk-proj-{draw(URL, 74)}T3BlbkFJ{draw(URL, 74)}",
    "openai admin": f"sk-admin-{draw(URL, 74)}T3BlbkFJ{draw(URL, 74)}",
    "anthropic": f"sk-ant-api03-{draw(URL, 93)}AA",
    "anthropic oauth": f"sk-ant-oat01-{draw(URL, 93)}AA",
    "openrouter": f"sk-or-v1-{draw(HEX, 64)}",
    "deepseek": f"sk-{draw(HEX, 32)}",
    "huggingface": f"hf_{draw(string.ascii_letters, 34)}",
    "groq": f"gsk_{draw(ALNUM, 52)}",
    "xai": f"xai-{draw(ALNUM, 80)}",
    "perplexity": f"pplx-{draw(ALNUM, 48)}",
    "replicate": f"r8_{draw(ALNUM, 37)}",
    "fireworks": f"fw_{draw(ALNUM, 24)}",
    "cerebras": f"csk-{draw(LOWER, 48)}",
    "nvidia": f"nvapi-{draw(URL, 64)}",
    "langsmith": f"lsv2_pt_{draw(HEX, 32)}_{draw(HEX, 10)}",
    "langfuse": f"sk-lf-{uuid()}",
    "pinecone": f"pcsk_{draw(ALNUM, 6)}_{draw(ALNUM, 63)}",
    "jina": f"jina_{draw(HEX, 32)}{draw(ALNUM, 28)}",
    "tavily": f"tvly-dev-{draw(ALNUM, 32)}",
    "firecrawl": f"fc-{draw(HEX, 32)}",
    "e2b": f"e2b_{draw(HEX, 40)}",
    "runpod": f"rpa_{draw(UPPER, 46)}",
    "elevenlabs": f"sk_{draw(HEX, 48)}",
    "weights and biases": f"wandb_v1_{draw(ALNUM, 60)}",
    "aws access key": f"AKIA{draw(BASE32, 16)}",
    "aws temporary key": f"ASIA{draw(BASE32, 16)}",
    "aws bedrock": f"ABSK{draw(B64, 120)}==",
    "aws session token": f"IQoJb3JpZ2luX2VjE{draw(B64, 300)}",
    "google api": f"AIza{draw(URL, 35)}",
    "google oauth secret": f"GOCSPX-{draw(URL, 28)}",
    "google access": f"ya29.a0{draw(URL, 120)}",
    "google refresh": f"1//0{draw(URL, 60)}",
    "azure client secret": f"{draw(ALNUM, 3)}8Q~{draw(URL, 34)}",
    "azure devops": f"{draw(ALNUM, 76)}AZDO{draw(ALNUM, 4)}",
    "azure ai": f"{draw(ALNUM, 52)}JQQJ99BAAC{draw(ALNUM, 22)}",
    "digitalocean": f"dop_v1_{draw(HEX, 64)}",
    "digitalocean oauth": f"doo_v1_{draw(HEX, 64)}",
    "cloudflare user": f"cfut_{draw(ALNUM, 48)}",
    "cloudflare origin ca": f"v1.0-{draw(HEX, 24)}-{draw(HEX, 146)}",
    "heroku": f"HRKU-AA{draw(URL, 58)}",
    "fly.io": f"fo1_{draw(URL, 43)}",
    "fly.io macaroon": f"fm2_lJPE{draw(B64, 180)}",
    "render": f"rnd_{draw(ALNUM, 32)}",
    "netlify": f"nfp_{draw(ALNUM, 36)}",
    "supabase": f"sbp_{draw(HEX, 40)}",
    "supabase secret": f"sb_secret_{draw(URL, 31)}",
    "planetscale": f"pscale_tkn_{draw(URL, 43)}",
    "neon": f"napi_{draw(LOWER, 64)}",
    "databricks": f"dapi{draw(HEX, 32)}-2",
    "dbt": f"dbtc_{draw(URL, 40)}",
    "vault": f"hvs.{draw(URL, 90)}",
    "terraform cloud": f"{draw(ALNUM, 14)}.atlasv1.{draw(URL, 67)}",
    "pulumi": f"pul-{draw(HEX, 40)}",
    "doppler": f"dp.st.prd.{draw(ALNUM, 43)}",
    "tailscale": f"tskey-auth-{draw(ALNUM, 12)}CNTRL-{draw(ALNUM, 32)}",
    "1password": f"ops_eyJ{draw(ALNUM, 250)}",
    "1password secret key": f"A3-{draw(UPPER, 6)}-{draw(UPPER, 6)}-{draw(UPPER, 5)}-{draw(UPPER, 5)}-{draw(UPPER, 5)}",
    "age": f"AGE-SECRET-KEY-1{draw('QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L', 58)}",
    "docker hub": f"dckr_pat_{draw(URL, 27)}",
    "npm": f"npm_{draw(ALNUM, 36)}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{draw(URL, 150)}",
    "rubygems": f"rubygems_{draw(HEX, 48)}",
    "nuget": f"oy2{draw(LOWER, 43)}",
    "crates.io": f"cio{draw(ALNUM, 32)}",
    "jfrog": f"AKCp{draw(ALNUM, 69)}",
    "stripe live": f"sk_live_{draw(ALNUM, 24)}",
    "stripe restricted": f"rk_live_{draw(ALNUM, 99)}",
    "stripe webhook": f"whsec_{draw(ALNUM, 32)}",
    "square": f"sq0atp-{draw(URL, 22)}",
    "paypal braintree": f"access_token$production${draw(LOWER, 16)}${draw(HEX, 32)}",
    "razorpay": f"rzp_live_{draw(ALNUM, 14)}",
    "shopify": f"shpat_{draw(HEX, 32)}",
    "flutterwave": f"FLWSECK_TEST-{draw(HEX, 32)}-X",
    "plaid": f"access-production-{uuid()}",
    "slack bot": f"xoxb-{draw('123456789', 12)}-{draw('123456789', 13)}-{draw(ALNUM, 24)}",
    "slack app": f"xapp-1-A{draw(UPPER, 10)}-{draw('123456789', 13)}-{draw(HEX, 64)}",
    "discord bot": f"M{draw(ALNUM, 25)}.{draw(URL, 6)}.{draw(URL, 38)}",
    "telegram": f"{draw('123456789', 10)}:AA{draw(URL, 33)}",
    "twilio": f"SK{draw(HEX, 32)}",
    "sendgrid": f"SG.{draw(URL, 22)}.{draw(URL, 43)}",
    "mailgun": f"key-{draw(HEX, 32)}",
    "mailgun signed": f"{draw(HEX, 32)}-{draw(HEX, 8)}-{draw(HEX, 8)}",
    "mailchimp": f"{draw(HEX, 32)}-us12",
    "brevo": f"xkeysib-{draw(HEX, 64)}-{draw(ALNUM, 16)}",
    "resend": f"re_{draw(ALNUM, 8)}_{draw(ALNUM, 24)}",
    "hubspot": f"pat-na1-{uuid()}",
    "airtable": f"pat{draw(ALNUM, 14)}.{draw(HEX, 64)}",
    "asana": f"2/{draw('123456789', 16)}/{draw('123456789', 16)}:{draw(HEX, 32)}",
    "atlassian": f"ATATT3xFfGF0{draw(URL, 170)}={draw(UPPER, 8)}",
    "linear": f"lin_api_{draw(ALNUM, 40)}",
    "notion": f"ntn_{draw('123456789', 11)}{draw(ALNUM, 35)}",
    "notion legacy": f"secret_{draw(ALNUM, 43)}",
    "figma": f"figd_{draw(URL, 40)}",
    "postman": f"PMAK-{draw(HEX, 24)}-{draw(HEX, 34)}",
    "contentful": f"CFPAT-{draw(URL, 43)}",
    "dropbox": f"sl.u.{draw(URL, 140)}",
    "facebook": f"EAA{draw(ALNUM, 180)}",
    "twitter bearer": f"{'A' * 21}{draw(ALNUM + '%', 80)}",
    "twitch": f"oauth:{draw(LOWER, 30)}",
    "new relic": f"NRAK-{draw(UPPER, 27)}",
    "dynatrace": f"dt0c01.{draw(BASE32, 24)}.{draw(BASE32, 64)}",
    "grafana": f"glsa_{draw(ALNUM, 32)}_{draw(HEX, 8)}",
    "grafana cloud": f"glc_{draw(B64, 100)}",
    "honeycomb": f"hcaik_{draw(LOWER, 58)}",
    "sentry user": f"sntryu_{draw(HEX, 64)}",
    "posthog": f"phx_{draw(ALNUM, 43)}",
    "sonarqube": f"squ_{draw(HEX, 40)}",
    "sourcegraph": f"sgp_{draw(HEX, 16)}_{draw(HEX, 40)}",
    "buildkite": f"bkua_{draw(HEX, 40)}",
    "circleci": f"CCIPAT_{draw(ALNUM, 22)}_{draw(HEX, 40)}",
    "launchdarkly": f"sdk-{uuid()}",
    "prefect": f"pnu_{draw(ALNUM, 36)}",
    "apify": f"apify_api_{draw(ALNUM, 36)}",
    "mapbox": f"sk.eyJ{draw(ALNUM, 60)}.{draw(URL, 22)}",
    "yandex": f"AQVN{draw(URL, 36)}",
    "alibaba": f"LTAI{draw(ALNUM, 20)}",
    "tencent": f"AKID{draw(ALNUM, 32)}",
    "duffel": f"duffel_live_{draw(URL, 43)}",
    "easypost": f"EZAK{draw(ALNUM, 54)}",
    "inngest": f"signkey-prod-{draw(HEX, 64)}",
    "paddle": f"pdl_live_apikey_{draw(LOWER, 26)}_{draw(ALNUM, 22)}_{draw(ALNUM, 3)}",
    "composio": f"ak_{draw(ALNUM, 20)}",
    "infracost": f"ico-{draw(ALNUM, 32)}",
    "octopus": f"API-{draw(UPPER, 26)}",
    "harness": f"pat.{draw(ALNUM, 22)}.{draw(HEX, 24)}.{draw(ALNUM, 20)}",
    "a provider nobody knows": f"acme_live_{draw(ALNUM, 32)}",
    "another unknown provider": f"zorb-sk-{draw(ALNUM, 40)}",
    "jwt": f"eyJ{draw(URL, 30)}.eyJ{draw(URL, 80)}.{draw(URL, 43)}",
    "jwe": f"eyJ{draw(URL, 60)}..{draw(URL, 16)}.{draw(URL, 80)}.{draw(URL, 22)}",
    "paseto": f"v2.local.{draw(URL, 120)}",
    "fernet": f"gAAAAA{draw(URL, 100)}",
    "extended private key": f"xprv9{draw('123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz', 106)}",
}

PASSWORD = "hv7Kq!mZ2x"
WORD = "hunter2"
KEY40 = draw(B64, 40)
HEX32, HEX64, RANDOM = draw(HEX, 32), draw(HEX, 64), draw(ALNUM, 32)
GITHUB = f"ghp_{draw(ALNUM, 36)}"
DER_RSA = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" + draw(B64, 32)
PEM_LINES = [DER_RSA, *(draw(B64, 64) for _ in range(5)), draw(B64, 30) + "=="]
PEM = "\n".join(PEM_LINES)
OPENSSH = "\n".join(
    ["b3BlbnNzaC1rZXktdjEAAAAABG5vbmUA" + draw(B64, 38), *(draw(B64, 70) for _ in range(4))]
)
KEYPAIR = ",".join(str(_DRAWN.randrange(256)) for _ in range(64))
WRAPPED = f"{GITHUB[:20]}\n{GITHUB[20:]}"
OPENAI = TOKENS["openai project"]


def _env(name: str, value: str) -> str:
    return f"HOST=localhost\nexport {name}={value}\nDEBUG=1"


_PLACES: list[tuple[str, str, str]] = [
    # Files of tools.
    ("env file", _env("DB_PASSWORD", PASSWORD), PASSWORD),
    ("env file, quoted", _env("SMTP_PASS", f"'{PASSWORD}'"), PASSWORD),
    ("env file, unknown name", _env("STRIPE_SK", RANDOM), RANDOM),
    ("env file, random under any name", _env("ACME_THING", f"{KEY40}"), KEY40),
    ("env file with a comment", f"API_TOKEN={RANDOM} # production", RANDOM),
    ("dockerfile ENV", f"FROM x\nENV API_TOKEN {RANDOM}\n", RANDOM),
    ("dockerfile ARG", f"ARG NPM_TOKEN={RANDOM}", RANDOM),
    ("compose", f"    environment:\n      - POSTGRES_PASSWORD={PASSWORD}\n", PASSWORD),
    ("yaml", f"database:\n  password: {PASSWORD}\n", PASSWORD),
    ("yaml block", f"password: |\n  {PASSWORD}\nuser: a", PASSWORD),
    ("yaml folded", f"api_token: >-\n    {RANDOM}\nuser: a", RANDOM),
    ("yaml, key below a provider", f"openai:\n  key: {RANDOM}\n", RANDOM),
    ("toml", f'[db]\npassword = "{PASSWORD}"', PASSWORD),
    ("ini", f"[client]\nuser=root\npassword={WORD}\n", WORD),
    ("java properties", f"spring.datasource.password={PASSWORD}", PASSWORD),
    ("hcl", f'variable "db_password" {{\n  default = "{PASSWORD}"\n}}', PASSWORD),
    ("tfvars", f'db_password = "{PASSWORD}"', PASSWORD),
    ("json", json.dumps({"client_secret": RANDOM}), RANDOM),
    ("json, camel case", json.dumps({"dbPassword": PASSWORD}), PASSWORD),
    ("json in json", json.dumps(json.dumps({"password": PASSWORD})), PASSWORD),
    ("json, name and value", json.dumps({"name": "DB_PASSWORD", "value": PASSWORD}), PASSWORD),
    ("yaml, name and value", f"env:\n  - name: API_TOKEN\n    value: {RANDOM}\n", RANDOM),
    ("json, key and value", json.dumps({"key": "apiKey", "value": RANDOM}), RANDOM),
    ("jwk", json.dumps({"kty": "EC", "crv": "P-256", "d": draw(URL, 43)}), ""),
    (
        "service account",
        json.dumps(
            {"private_key": f"-----BEGIN PRIVATE KEY-----\n{PEM}\n-----END PRIVATE KEY-----\n"}
        ),
        PEM_LINES[2],
    ),
    (
        "kubeconfig key",
        f"    client-key-data: {b64('-----BEGIN RSA PRIVATE KEY-----' + chr(10) + PEM)}",
        b64("-----BEGIN RSA PRIVATE KEY-----\n" + PEM)[:60],
    ),
    ("kubeconfig token", f"users:\n- user:\n    token: {RANDOM}\n", RANDOM),
    ("kubernetes secret", f"kind: Secret\ndata:\n  password: {b64(PASSWORD)}\n", b64(PASSWORD)),
    (
        "kubernetes secret, other name",
        f"kind: Secret\ndata:\n  config: {b64('password=' + PASSWORD)}\n",
        b64("password=" + PASSWORD),
    ),
    (
        "docker config",
        json.dumps({"auths": {"r.io": {"auth": b64("ann:" + PASSWORD)}}}),
        b64("ann:" + PASSWORD),
    ),
    ("docker identity token", json.dumps({"identitytoken": RANDOM}), RANDOM),
    ("netrc", f"machine api.corp.dev\n  login ann\n  password {WORD}\n", WORD),
    ("netrc, one line", f"machine api.corp.dev login ann password {WORD}", WORD),
    ("npmrc", f"//registry.corp.dev/:_authToken={uuid()}", ""),
    ("npmrc password", f"//registry.corp.dev/:_password={b64(PASSWORD)}", b64(PASSWORD)),
    ("pypirc", f"[pypi]\nusername = ann\npassword = {PASSWORD}", PASSWORD),
    ("git credentials", f"https://ann:{RANDOM}@git.corp.dev", RANDOM),
    ("pgpass", f"db.corp:5432:app:ann:{WORD}", WORD),
    ("my.cnf", f"[mysqldump]\nuser=backup\npassword={PASSWORD}\n", PASSWORD),
    ("wp-config", f"define( 'DB_PASSWORD', '{PASSWORD}' );", PASSWORD),
    ("php array", f"'password' => '{PASSWORD}',", PASSWORD),
    ("laravel", f"APP_KEY=base64:{b64(RANDOM)}", b64(RANDOM)),
    ("django", f"SECRET_KEY = 'django-insecure-{draw(LOWER + '!@#$%^&*(-_=+)', 50)}'", ""),
    ("rails", f"production:\n  secret_key_base: {HEX64}{HEX64}", HEX64),
    ("wireguard", f"[Interface]\nPrivateKey = {draw(B64, 43)}=\n", ""),
    ("wireguard preshared", f"PresharedKey = {draw(B64, 43)}=", ""),
    (
        "openvpn static key",
        f"-----BEGIN OpenVPN Static key V1-----\n{HEX32}\n-----END OpenVPN Static key V1-----",
        HEX32,
    ),
    ("putty", f"Private-Lines: 2\n{draw(B64, 64)}\n{draw(B64, 40)}\nPrivate-MAC: {HEX32}", ""),
    ("htpasswd apr1", f"ann:$apr1${draw(ALNUM, 8)}${draw(ALNUM + './', 22)}", ""),
    ("htpasswd bcrypt", f"ann:$2y$10${draw(ALNUM + './', 53)}", ""),
    ("htpasswd sha", f"ann:{{SHA}}{draw(B64, 27)}=", ""),
    ("shadow", f"root:$6${draw(ALNUM, 8)}${draw(ALNUM + './', 86)}:19000:0:99999:7:::", ""),
    (
        "shadow yescrypt",
        f"ann:$y$j9T${draw(ALNUM, 22)}${draw(ALNUM + './', 43)}:19000:0:99999:7:::",
        "",
    ),
    ("argon2", f"hash: $argon2id$v=19$m=65536,t=3,p=4${draw(B64, 22)}${draw(B64, 43)}", ""),
    ("django hash", f"pbkdf2_sha256$600000${draw(ALNUM, 22)}${draw(B64, 43)}=", ""),
    ("ldap", f"userPassword: {{SSHA}}{draw(B64, 32)}", ""),
    ("ntlm dump", f"ann:1001:{draw(HEX, 32)}:{draw(HEX, 32)}:::", ""),
    (
        "maven settings",
        f"<server><id>x</id><username>ann</username><password>{PASSWORD}</password></server>",
        PASSWORD,
    ),
    ("xml, other element", f"<ns:ApiToken type='s'>{RANDOM}</ns:ApiToken>", RANDOM),
    ("xml attribute", f'<add key="ApiSecret" value="{RANDOM}" />', RANDOM),
    ("xml property", f'<property name="db.password" value="{PASSWORD}"/>', PASSWORD),
    ("xml entry", f'<entry key="db.password">{PASSWORD}</entry>', PASSWORD),
    ("android string", f'<string name="maps_api_key">{RANDOM}</string>', RANDOM),
    ("plist", f"<key>Password</key>\n<string>{PASSWORD}</string>", PASSWORD),
    # Connection strings and addresses.
    ("postgres url", f"postgres://ann:{WORD}@db.corp/app", WORD),
    ("redis url", f"redis://:{WORD}@cache.corp:6379/0", WORD),
    ("mongodb url", f"mongodb+srv://ann:{WORD}@c0.corp.net/app", WORD),
    ("odbc", f"Driver={{SQL}};Server=db;Uid=ann;Pwd={PASSWORD};", PASSWORD),
    ("ado.net", f"Server=db;User Id=sa;Password={PASSWORD};Encrypt=yes", PASSWORD),
    ("jdbc", f"jdbc:mysql://db/app?user=ann&password={WORD}", WORD),
    ("jdbc sqlserver", f"jdbc:sqlserver://db;user=sa;password={PASSWORD};", PASSWORD),
    (
        "azure storage",
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={draw(B64, 86)}==;EndpointSuffix=x",
        "",
    ),
    (
        "azure service bus",
        f"Endpoint=sb://a/;SharedAccessKeyName=Root;SharedAccessKey={draw(B64, 43)}=",
        "",
    ),
    ("azure sas", f"https://a.blob.core.windows.net/c?sv=2024&sig={draw(ALNUM, 43)}%3D", ""),
    ("libpq", f'psql "host=db user=ann password={WORD}"', WORD),
    ("aws presigned", f"https://b.s3.amazonaws.com/k?X-Amz-Signature={HEX64}", HEX64),
    ("gcs signed", f"https://storage.googleapis.com/b/k?X-Goog-Signature={HEX64}", HEX64),
    ("url parameter", f"https://api.corp.dev/v1?api_key={RANDOM}&x=1", RANDOM),
    ("url parameter, client secret", f"https://x.dev/oauth?client_secret={RANDOM}", RANDOM),
    ("url fragment", f"https://x.dev/cb#access_token={RANDOM}&type=bearer", RANDOM),
    ("otpauth", f"otpauth://totp/Corp:ann?secret={draw(BASE32, 32)}&issuer=Corp", ""),
    ("sentry dsn", f"https://{HEX32}@o1.ingest.sentry.io/2", HEX32),
    ("cloudinary", f"CLOUDINARY_URL=cloudinary://123456789012345:{draw(URL, 27)}@corp", ""),
    (
        "slack webhook",
        f"https://hooks.slack.com/services/T{draw(UPPER, 8)}/B{draw(UPPER, 8)}/{draw(ALNUM, 24)}",
        "",
    ),
    ("discord webhook", f"https://discord.com/api/webhooks/123456789012345678/{draw(URL, 68)}", ""),
    (
        "teams webhook",
        f"https://corp.webhook.office.com/webhookb2/{uuid()}@{uuid()}/IncomingWebhook/{HEX32}/{uuid()}",
        HEX32,
    ),
    ("zapier hook", f"https://hooks.zapier.com/hooks/catch/1234567/{draw(LOWER, 7)}/", ""),
    # Headers.
    ("bearer", f"curl -H 'Authorization: Bearer {RANDOM}' https://x", RANDOM),
    ("basic", f"Authorization: Basic {b64('ann:' + PASSWORD)}", b64("ann:" + PASSWORD)),
    ("token header", f"Authorization: token {HEX32}", HEX32),
    ("proxy", f"Proxy-Authorization: Basic {b64('ann:' + WORD)}", b64("ann:" + WORD)),
    ("api key header", f"-H 'X-Api-Key: {RANDOM}'", RANDOM),
    ("private token header", f"PRIVATE-TOKEN: {RANDOM}", RANDOM),
    ("subscription key", f"Ocp-Apim-Subscription-Key: {HEX32}", HEX32),
    ("cookie", f"Cookie: session={RANDOM}; theme=dark", RANDOM),
    ("set-cookie", f"Set-Cookie: sid={RANDOM}; Path=/; HttpOnly", RANDOM),
    (
        "sql log of AUTH PLAIN",
        f"AUTH PLAIN {b64(chr(0) + 'ann' + chr(0) + PASSWORD)}",
        b64("\0ann\0" + PASSWORD),
    ),
    # Commands.
    ("curl user", f"curl -u ann:{WORD} https://x", WORD),
    ("flag", f"tool --password {PASSWORD} --verbose", PASSWORD),
    ("flag with =", f"tool --client-secret={RANDOM}", RANDOM),
    ("other flag", f"tool --db-password {PASSWORD}", PASSWORD),
    ("sshpass", f"sshpass -p {WORD} ssh ann@h", WORD),
    ("mysql -p", f"mysql -u root -p{WORD} app", WORD),
    ("redis-cli -a", f"redis-cli -h r -a {PASSWORD} ping", PASSWORD),
    ("docker login", f"docker login -u ann -p {PASSWORD} r.io", PASSWORD),
    (
        "password on standard input",
        f"echo {PASSWORD} | docker login -u ann --password-stdin",
        PASSWORD,
    ),
    ("sudo", f"echo '{WORD}' | sudo -S apt-get update", WORD),
    ("chpasswd", f'echo "ann:{PASSWORD}" | chpasswd', PASSWORD),
    ("htpasswd command", f"htpasswd -b .htpasswd ann {PASSWORD}", PASSWORD),
    ("openssl", f"openssl enc -aes-256-cbc -pass pass:{PASSWORD} -in a", PASSWORD),
    ("ldapsearch", f"ldapsearch -D cn=admin -w {PASSWORD} -b dc=x", PASSWORD),
    ("smb", f"smbclient //h/s -U ann%{PASSWORD}", PASSWORD),
    ("zip", f"zip -P {PASSWORD} a.zip b", PASSWORD),
    ("keytool", f"keytool -storepass {PASSWORD} -list", PASSWORD),
    ("sqlcmd", f"sqlcmd -S db -U sa -P {PASSWORD}", PASSWORD),
    ("gh secret", f"gh secret set NPM_TOKEN --body {RANDOM}", RANDOM),
    ("kubectl", f"kubectl create secret generic db --from-literal=password={PASSWORD}", PASSWORD),
    ("aws configure", f"aws configure set aws_secret_access_key {KEY40}", KEY40),
    ("aws credentials", f"[default]\naws_secret_access_key = {KEY40}", KEY40),
    ("fish", f"set -gx API_TOKEN {RANDOM}", RANDOM),
    ("csh", f"setenv API_TOKEN {RANDOM}", RANDOM),
    ("powershell", f'$env:API_TOKEN = "{RANDOM}"', RANDOM),
    (
        "powershell secure string",
        f'ConvertTo-SecureString "{PASSWORD}" -AsPlainText -Force',
        PASSWORD,
    ),
    ("windows set", f"set API_TOKEN={RANDOM}", RANDOM),
    ("helm", f"helm install x --set auth.password={PASSWORD}", PASSWORD),
    ("postgres variable", f"PGPASSWORD={WORD} psql -h db", WORD),
    ("mysql variable", f"MYSQL_PWD={WORD} mysql -h db", WORD),
    ("sql create", f"CREATE USER ann WITH PASSWORD '{WORD}';", WORD),
    ("sql identified", f"CREATE USER 'ann'@'%' IDENTIFIED BY '{WORD}';", WORD),
    # Code.
    ("python", f'client = Client(api_key="{RANDOM}")', RANDOM),
    ("python environ", f'os.environ["API_TOKEN"] = "{RANDOM}"', RANDOM),
    ("python default", f'os.getenv("API_TOKEN", "{RANDOM}")', RANDOM),
    ("python pair", f'auth=("ann", "{PASSWORD}")', PASSWORD),
    ("setter", f'ds.setPassword("{PASSWORD}");', PASSWORD),
    ("go", f'apiKey := "{RANDOM}"', RANDOM),
    ("comparison", f'if (password === "{PASSWORD}") {{', PASSWORD),
    (
        "form data",
        f'Content-Disposition: form-data; name="password"\r\n\r\n{PASSWORD}\r\n--x',
        PASSWORD,
    ),
    ("html escaped", f"&quot;password&quot;:&quot;{PASSWORD}&quot;", PASSWORD),
    ("percent encoded", f"body=%22password%22%3A%22{WORD}%22", WORD),
    (
        "mnemonic",
        "seed phrase: legal winner thank year wave sausage worth useful legal winner thank yellow",
        "legal winner thank year",
    ),
    ("ethereum key", f"PRIVATE_KEY=0x{HEX64}", HEX64),
    ("solana keypair", f"keypair: [{KEYPAIR}]", KEYPAIR),
    # Prose and tables.
    ("prose", f"The password is {WORD}, please change it.", WORD),
    ("prose, quoted", f'my password was "{PASSWORD}" before', PASSWORD),
    ("prose, token", f"use the API key {RANDOM} for that", RANDOM),
    ("prose, for whom", f"The password for admin is {PASSWORD}.", PASSWORD),
    ("prose, login", f"You can log in with admin / {PASSWORD}", PASSWORD),
    ("prose, credentials", f"credentials: admin:{PASSWORD}", PASSWORD),
    ("prose, backticks", f"Password: `{PASSWORD}`", PASSWORD),
    ("prose, bold", f"**Password:** {PASSWORD}", PASSWORD),
    ("german", f"Das Passwort lautet {PASSWORD}", PASSWORD),
    ("spanish", f"contraseña: {PASSWORD}", PASSWORD),
    ("french", f"mot de passe : {PASSWORD}", PASSWORD),
    ("japanese", f"パスワード\uff1a{PASSWORD}", PASSWORD),
    ("chinese", f"密码: {PASSWORD}", PASSWORD),
    ("markdown table", f"| name | value |\n|---|---|\n| password | {WORD} |", WORD),
    (
        "markdown column",
        f"| user | password |\n|---|---|\n| ann | {WORD} |\n| bob | {PASSWORD} |",
        PASSWORD,
    ),
    (
        "markdown column, first row",
        f"| user | password |\n|---|---|\n| ann | {WORD} |\n| bob | {PASSWORD} |",
        WORD,
    ),
    ("psql table", f" user | password \n------+----------\n ann  | {WORD}\n(1 row)", WORD),
    ("csv", f"user,password,role\nann,{PASSWORD},admin\n", PASSWORD),
    ("csv, quoted", f'"user","api_token"\n"ann","{RANDOM}"\n', RANDOM),
    ("tabs", f"user\ttoken\nann\t{RANDOM}\n", RANDOM),
    ("aligned columns", f"NAME   PASSWORD      AGE\nann    {PASSWORD}    3d\n", PASSWORD),
    ("value on the next line", f"Your new API key:\n\n    {RANDOM}\n\nKeep it.", RANDOM),
    # Odd places.
    ("pem body without markers", PEM, PEM_LINES[3]),
    ("pem body, first line", PEM, DER_RSA),
    ("pem body in one line", "key " + "".join(PEM_LINES), PEM_LINES[3]),
    ("openssh body without markers", OPENSSH, OPENSSH.split("\n")[2]),
    ("end of a pem body", "\n".join(PEM_LINES[2:]) + "\n-----END PRIVATE KEY-----", PEM_LINES[4]),
    ("pem body, end cut off", "-----BEGIN PRIVATE KEY-----\n" + PEM, PEM_LINES[3]),
    ("base64 of a token", f"blob {b64(GITHUB)} end", b64(GITHUB)),
    (
        "base64 of json",
        f"blob {b64(json.dumps({'api_key': RANDOM}))} end",
        b64(json.dumps({"api_key": RANDOM})),
    ),
    (
        "base64 of an env file",
        f"echo {b64(_env('DB_PASSWORD', PASSWORD))} | base64 -d",
        b64(_env("DB_PASSWORD", PASSWORD)),
    ),
    ("wrapped token", f"token\n{WRAPPED}\n", GITHUB[20:]),
    ("wrapped token, beginning", f"token\n{WRAPPED}\n", GITHUB[:20]),
    (
        "wrapped token, indented",
        f"  {OPENAI[:70]}\n  {OPENAI[70:140]}\n  {OPENAI[140:]}",
        OPENAI[140:],
    ),
    ("wrapped by a backslash", f"curl -H X:{GITHUB[:20]}\\\n{GITHUB[20:]}", GITHUB[20:]),
    ("after a line number", f"    12\u2192API_TOKEN={RANDOM}", RANDOM),
    ("in a diff", f"@@ -1 +1 @@\n-DB_PASSWORD={WORD}\n+DB_PASSWORD={PASSWORD}", PASSWORD),
    ("in grep output", f".env:3:DB_PASSWORD={PASSWORD}", PASSWORD),
    ("after a colour", f"\x1b[32m{GITHUB}\x1b[0m", GITHUB),
    ("escaped newline", f'"x\\n{GITHUB}\\n"', GITHUB),
    ("in an address", f"https://x.dev/{GITHUB}/y", GITHUB),
    ("in a file name", f"rm /tmp/{GITHUB}.txt", GITHUB),
    ("app password, mail behind", "[Telegram] kqzt wvbn axmr hjpl ann@corp.dev\n", "kqzt wvbn"),
    ("app password, mail before", "ann@corp.dev\nkqzt wvbn axmr hjpl", "kqzt wvbn"),
    ("app password, words", "my app password is kqzt wvbn axmr hjpl", "kqzt wvbn"),
    ("app password, quoted", "App-specific password: `kqzt wvbn axmr hjpl`", "kqzt wvbn"),
    ("app password of WordPress", "here: kQzt 3bnA xm9r HjpL w2Ve Tc7s\n", "kQzt 3bnA"),
    ("app password after a user", "curl -u 'ann:kQzt 3bnA xm9r HjpL w2Ve Tc7s' x.dev", "xm9r HjpL"),
    (
        "password behind an address",
        "[12:00] ann@corp.dev rTq7mWp2Lk\n[message_id: 3]",
        "rTq7mWp2Lk",
    ),
    ("password under an address", "ann@corp.dev\nrTq7mWp2Lk", "rTq7mWp2Lk"),
    ("password of a host", "root@10.0.0.8 rTq7mWp2Lk", "rTq7mWp2Lk"),
    ("password in Chinese prose", "\u660e\u6587\u5bc6\u7801 `gate778899`", "gate778899"),
    ("password in Chinese, verb", "\u5bc6\u7801\u662fgate778899", "gate778899"),
    ("password in prose", "the camera has the password `gate778899`.", "gate778899"),
    ("user and password", "- `10.0.0.8` / `admin` / `gate778899` / `channel=1`", "gate778899"),
    ("user over password", "10.0.0.8\nadmin \ngate778899\n", "gate778899"),
    ("recipient's number", '{"recipient": "+491701234567"}', "+491701234567"),
    ("whatsapp header", "[WhatsApp +491701234567 +3m 2026-02-03 17:30 UTC] Hi", "+491701234567"),
    ("sender's number", '{"sender": "+491701234567", "x": 1}', "+491701234567"),
    ("telegram header", "[Telegram Ann Lee (@annlee) id:5551234567 +1h 2026] hi", "annlee"),
    ("email of a company", "write to contact@leeworks.co", "contact@leeworks.co"),
    ("email", "ask ann.lee@corp.dev", "ann.lee@corp.dev"),
]


def _cases() -> Iterator[tuple[str, str, str]]:
    for name, token in TOKENS.items():
        yield name, f"got {token} from it", token
    for name, text, secret in _PLACES:
        yield name, text, secret or _last_random(text)
    for mark, written in (("soft hyphen", "\u00ad"), ("zero width space", "\u200b")):
        broken = f"{GITHUB[:15]}{written}{GITHUB[15:]}"
        yield f"{mark} in a token", f"see {broken} here", GITHUB[15:]


def _last_random(text: str) -> str:
    """Return the longest run without separators: the drawn value."""
    runs = "".join(c if c in f"{B64}=-_.!@#$%^&*" else " " for c in text).split()
    return max(runs, key=len)


CASES = list(_cases())

# What only looks like a secret.
HARMLESS = [
    "[Telegram] they will also send ann@example.com\nthis must have been\n",
    "The app password has four long words: that will also work",
    "They said that 2024 will come with JSON; 6865 6c6c 6f20 776f 726c 640a 0a00 dead beef",
    "ann@example.com 1a2b3c4\nbob@example.com 2026-02-09T12:00\nann@example.com second-line",
    "enter the password `hunter` twice; the password `config.yaml` names; git@github.com main",
    "admin / member / guest; root/abc123; admin\nsrc2\nadmin / user_v2.ts",
    "[WhatsApp Web] +12 lines; [Telegram] id: 42; version +20260203",
    f"github.com/x/y v1.2.3 h1:{draw(B64, 43)}=",
    f"github.com/x/y v1.2.3/go.mod h1:{draw(B64, 43)}=",
    f'"integrity": "sha512-{draw(B64, 86)}=="',
    f'      "resolved": "https://registry.npmjs.org/a/-/a-1.0.0.tgz#{draw(HEX, 40)}",',
    f'{{ url = "https://files.pythonhosted.org/packages/a.whl", hash = "sha256:{HEX64}" }}',
    f'checksum = "{HEX64}"',
    f"    --hash=sha256:{HEX64}",
    "330-@click.option\n331-@app.command\n12:@pytest.fixture\n+@dataclass.field",
    f"commit {draw(HEX, 40)}",
    f"index {draw(HEX, 7)}..{draw(HEX, 7)} 100644",
    f"session {uuid()} started",
    f'"id": "{uuid()}"',
    f'"call_id": "call_{draw(ALNUM, 24)}"',
    f'"tool_use_id": "toolu_01{draw(ALNUM, 22)}"',
    f'"id": "msg_01{draw(ALNUM, 22)}"',
    f'"id": "chatcmpl-{draw(ALNUM, 29)}"',
    f'"request_id": "req_01{draw(ALNUM, 22)}"',
    f"image: nginx@sha256:{HEX64}",
    f'"etag": "W/\\"{draw(HEX, 32)}\\""',
    f"dist/assets/index-{draw(ALNUM, 8)}.js  {draw(HEX, 40)}",
    f"address: 0x{draw(HEX, 40)}",
    'password: "test"\npassword: "test123"\nPASSWORD=changeme\npassword="your-password"',
    'token: "fake_token_12345"\ntoken = "invalid-token"\napi_key: "dummy-key"\nsecret: "test-secret"',
    'apiKey: "ollama"\nAPI_KEY="your_api_key_here"\nTOKEN=xxxxxxxxxxxx\nSECRET=<secret>',
    "DB_PASSWORD=${DB_PASSWORD}\nTOKEN=$(cat token.txt)\nPASSWORD=$PASSWORD\ntoken: ${{ secrets.NPM_TOKEN }}",
    "password = os.environ['DB_PASSWORD']\napi_key = settings.API_KEY\ntoken = get_token(user)",
    'password: process.env.PASSWORD || ""\nsecret: Secret\ntoken: Token | None = None',
    "password: z.string().min(8)\ntoken: str = Field(...)\napi_key: Optional[str] = None",
    '"confirm-password": "Confirm password",\n"forgot-password": "Forgot password?",\n"password": "Password"',
    "The password is required. The token is expired. The secret is stored in Vault. Password was reset.",
    "password must be at least 8 characters; token has expired at 12:30; the API key is missing",
    "token 5 of 12, tokens: 514k, max_tokens: 4096, nextPageToken: CAoQAA, token_count=128000",
    "| token | meaning |\n|---|---|\n| if | keyword |\n| password | the password of the user |",
    "| Option | Default |\n|---|---|\n| `api_key` | `None` |\n| `token` | `null` |",
    "def login(user, password, host):\n    a, b, c = user, password, host",
    "SELECT user, password FROM users;\nINSERT INTO users (email, password) VALUES ($1, $2)",
    "Authorization: Bearer YOUR_API_KEY\nAuthorization: Bearer <token>\nAuthorization: Bearer $TOKEN\nAuthorization: Bearer ${TOKEN}",
    'headers["Authorization"] = f"Bearer {token}"\nheaders: { Authorization: `Bearer ${token}` }',
    "postgres://user:password@localhost:5432/db\nhttps://user:pass@example.com\nredis://localhost:6379",
    '"@solana/spl-token": "^0.4.13",\n"js-tokens": "^4.0.0",\n"jsonwebtoken": "9.0.2"',
    "test@test.com, user@example.com, a@b.c, noreply@github.com, you@example.org, foo@bar.com, git@github.com:a/b",
    "primary_key: id1234, foreign_key=user_id_1, cache_key: user:1:profile, public_key: abc123def",
    f'cache_key = "{draw(HEX, 64)}"',
    f'"publicKey": "{draw(B64, 43)}="',
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYDVQQGEwJJ\n-----END CERTIFICATE-----",
    f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{draw(B64, 43)} laptop",
    f"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA{draw(B64, 200)}",
    f"//# sourceMappingURL=data:application/json;base64,{b64(json.dumps({'version': 3, 'sources': ['a.ts']}))}",
    "access token expired; refresh token rotation; secret scanning; password manager; credential helper 2",
    "sk-hynix-inc-derivatives, hf_transfer, npm_config_registry, gh_token, AKIA, sk-learn-contrib-examples-of-it",
    "--token-limit 4096 --password-file /run/secrets/db --secret id=npm,src=.npmrc",
    "PWD=/srv/app/code\nOLDPWD=/srv/app\npwd: /srv/app",
    "kubectl get secret db-password -o yaml\nsecretKeyRef:\n  name: db-password\n  key: password",
    "--- PASS: TestFoo2 (0.00s)\npass: 12, fail: 3\nPASSED: 14",
    "[REDACTED:github_token] and password=***REDACTED*** and token: 6853e7…a292 and key: sk-ant-o...DpSn",
]
