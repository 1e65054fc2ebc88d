"""Shell hooks for the build of the guest's disk; $1 is the folder of the root."""

# Run inside the root before the packages come: a listed initrd boots faster than one for every machine.
INITRD_HOOK = """
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
printf 'MODULES=list\\nCOMPRESS=gzip\\nCOMPRESSLEVEL=1\\nRESUME=none\\n' >"$1/etc/initramfs-tools/conf.d/vm"
printf '%s\\n' ext4 crc32c crc32c_generic virtio_pci virtio_blk virtio_net \\
    >"$1/usr/share/initramfs-tools/modules.d/vm"
# What udev's own script would do: hand the kernel's /dev on to the real root.
bottom=$1/etc/initramfs-tools/scripts/init-bottom
mkdir -p "$bottom"
printf '#!/bin/sh\\n[ "$1" = prereqs ] || mount -n -o move /dev "$rootmnt/dev"\\n' >"$bottom/vm"
chmod 755 "$bottom/vm"
"""

# Run after the packages. Installations run Debian's pip from its wheel, a zip: Python takes byte code from one
# and never puts any there, and an emulated CPU compiles all of pip each time. Unchecked: a zip's times are not exact.
WHEELS_HOOK = """
chroot "$1" python3 -I - <<'PYTHON'
import glob, py_compile, tempfile, zipfile
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
for wheel in glob.glob("/usr/share/python-wheels/pip-*.whl"):
    with zipfile.ZipFile(wheel, "a") as content, tempfile.TemporaryDirectory() as folder:
        for name in [name for name in content.namelist() if name.endswith(".py")]:
            source = content.extract(name, folder)
            content.write(py_compile.compile(source, source + "c", name, True, -1, unchecked), name + "c")
PYTHON
"""
