"""The proof as a job: `slotwheel replay` on a Spark that is started already.

    spark-submit --master spark://HOST:7077 --py-files slotwheel.zip replay/job.py DIR... --report O

Theory: ``spark-submit`` runs this file by its path, so it is in no package and names the package in
full; that comes with ``--py-files``, to the driver and to the executors. Arguments, output and exit
codes are the command's, without the options that ``spark-submit`` has itself: the master, the
memory, the Kafka connector.

On the driver's machine, what slotwheel needs must be installed; executors have numpy, pyarrow and
crc32c.
"""

from __future__ import annotations

import sys

from slotwheel.cli.main import main
from slotwheel.replay.session import SUBMITTED

if __name__ == "__main__":
    main(["replay", f"--master={SUBMITTED}", *sys.argv[1:]])
