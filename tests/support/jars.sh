# Sourced by the scripts that fetch jars, from the root of the tree.

# fetch POM TARGET REMEDY: the jars that a pom names, by Maven, into a directory that is not there.
fetch() {
    [ ! -d "$2" ] || return 0
    echo "==> fetching the jars of ${2#.cache/} into $2 (once)"
    mkdir -p .cache
    # Fetched beside the target and renamed: an interrupted fetch leaves nothing that looks complete.
    partial=$(mktemp -d .cache/partial.XXXXXX)
    trap 'rm -rf "$partial"' EXIT
    if ! mvn -B -q -f "$1" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$PWD/$partial" >"$partial/log" 2>&1; then
        cat "$partial/log" >&2
        echo "error: Maven could not fetch the jars (above); $3" >&2
        exit 1
    fi
    rm "$partial/log"
    chmod 755 "$partial"
    mv -T "$partial" "$2"
}
