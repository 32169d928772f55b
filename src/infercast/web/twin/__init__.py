"""The page as a folder of files without a server: Python, numpy and infercast run in the browser (Pyodide)."""
