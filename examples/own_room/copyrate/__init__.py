"""How fast does this machine copy memory? The smallest room: one step, one number, one page."""

from lab.core.plan import Silent


def recognises(folder):
    """True for a folder of recordings that this room reads without a run; this room has none."""
    return False


def watcher(run):
    """What follows the steps' output while they run; Silent follows nothing."""
    return Silent()


def analyse(folder, out, run, progress):
    from lab.rooms.copyrate.report import report

    return report(folder, out, run)
