"""The host side of a recipe: its thread, durable state, models and budgets, and signals."""

# RecipeServices   what the recipes of a host share: job store, models, limits
# RecipeRuntime    a binding: its thread, and contexts for its calls
# SignalStage      units wait here until `signal` has spoken
# Verdicts         calls `on_verdict`
#
# A call of recipe code has a subject (a unit, a job, a verdict). Its writes to `ctx.store` are
# buffered, and saved in the transaction that saves its result. The answers of models to a subject
# are kept until then, so that a killed host repeats only the calls in flight.
