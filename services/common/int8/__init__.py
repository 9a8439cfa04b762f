"""Models in 8 bits: how rows are quantised (`rows`), layers that compute with them (`linear`), what is said of such a model
(`notes`), and the directory that it is saved in (`form`). The Distiller writes that, workers read it."""
