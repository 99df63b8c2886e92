"""The generated parts of the pages under docs/.

python -m infra.docs            exits 1 if a page is not current
python -m infra.docs --write    updates the pages
"""
