"""The job host: from waiting samples to the verdict on a candidate.

A kind of recipe is an `Executor`. Each transition of a job is a transaction that names the state it
expects, so it may be repeated, and a killed process goes on from the last transition.
"""

#   samples --decide--> job --Executor.run--> output --artifact store--> candidate --> verdict
#
# The host keeps jobs and samples in a `JobStore`, sends events
# from an outbox, retries, applies verdicts, and forgets. A binding has at most one unfinished job.
#
#   state       the disk holds                          next
#   open        the job has its samples                 produced, or gone (its samples wait,
#                                                       or are refused)
#   produced    the output of `Executor.run`            stored, finished, refused
#   stored      the content's id, events in the outbox  announced
#   announced   the broker has the events               published, pending, rejected,
#                                                       conflicted, aborted
#   conflicted  the head moved before the verdict       stored or produced on the new head, aborted
#   pending     a person decides                        published, rejected, aborted
#   published   the content serves                      end
#   rejected    the candidate lost on its merits        end
#   aborted     it was not judged, or lost its base     end; published if a person promotes it
#   finished    a step without a candidate              end
#   refused     an output that may not be proposed      end; the recipe sees it as a rejection
#
# A step whose output is on disk is not run again. A content is stored under its digest. An event
# keeps its id.
