"""Cards of `pimono_sdpo`: dataset cards, model cards, reports and plots of what a run did."""
