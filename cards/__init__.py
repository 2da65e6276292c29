"""Cards of `pimono_sdpo`: dataset cards, model cards, reports and pages of what a run did."""
