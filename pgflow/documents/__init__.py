"""Documents: values under paths, which an application or an integration keeps beside its runs.

Use them for data that outlives runs: the checkpoints of a graph, the memory of an agent, the items
of a conversation. A path is a list of names, and documents with the same first names form a folder.
Several documents are written at once, or none of them.

``AsyncDocuments`` and ``Documents`` take an app. In the body of a transactional step, pass its
connection: then documents and the outcome of the step commit together.

Example::

    documents = Documents(app)
    documents.put([Put("note", ("ada", "1"), {"text": "likes tea"}, ttl=3600)])
    assert [d.value["text"] for d in documents.list("note", ("ada",))] == ["likes tea"]
"""

from pgflow.documents._async_documents import AsyncDocuments
from pgflow.documents._sync_documents import Documents
from pgflow.documents.document import Document, Put

__all__ = ["AsyncDocuments", "Document", "Documents", "Put"]
