# Sourced by the scripts that fetch jars for the tests. Needs $needed_by: what is told of.

# install WHAT REMEDY PACKAGE...: the first package that apt has, as root; else an explanation.
install() {
    local what=$1 remedy=$2
    shift 2
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "error: the $needed_by tests need $what; install it${remedy:+, or $remedy}" >&2
        exit 1
    fi
    echo "==> $needed_by: installing $what"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    local package
    for package in "$@"; do
        if apt-get install -y -qq --no-install-recommends "$package" >/dev/null; then
            return
        fi
    done
    echo "error: could not install $what (tried: $*)" >&2
    exit 1
}

# fetch POM TARGET REMEDY: the jars that a pom names, by Maven, into a directory that is not there.
fetch() {
    local pom=$1 target=$2 remedy=$3
    command -v mvn >/dev/null || install "Maven" "$remedy" maven
    mkdir -p .cache
    # Fetched beside the target and renamed: an interrupted fetch leaves nothing that looks complete.
    partial=$(mktemp -d .cache/partial.XXXXXX)
    trap 'rm -rf "$partial"' EXIT
    if ! mvn -B -q -f "$pom" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$PWD/$partial" >"$partial/log" 2>&1; then
        cat "$partial/log" >&2
        echo "error: Maven could not fetch the jars (above); $remedy" >&2
        exit 1
    fi
    rm "$partial/log"
    chmod 755 "$partial"
    mv -T "$partial" "$target"
}
